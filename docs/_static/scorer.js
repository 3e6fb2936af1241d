/* How the search of Sphinx ranks what it has found. */

/** Pages for those who change distlock stand last, guides for a task first. */
const RANKS = [
  [/^(architecture|changelog|contributing)$/, -1000],
  [/^(tutorial|howto\/)/, 2],
  [/^(reference|comparison)/, 0],
  [/^/, 1],
];

var Scorer = {
  score: ([page, , , , score]) => score + RANKS.find(([pattern]) => pattern.test(page))[1],

  // As in Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
