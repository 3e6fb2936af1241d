/* How the search of Sphinx ranks what it has found. */

/** Pages for those who change distlock stand last, guides for a task first. */
const RANKS = [
  [/^(architecture|changelog|contributing)$/, -1000],
  [/^(tutorial|howto\/)/, 2],
  [/^(reference|comparison)/, 0],
  [/^/, 1],
];

/** The pages that have all words of the query in one title. */
function pagesWithTitle() {
  const query = new URLSearchParams(window.location.search).get("q") ?? "";
  const words = query.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];
  const { alltitles, docnames } = Search._index;
  const titles = Object.entries(alltitles).filter(([title]) =>
    words.every((word) => title.toLowerCase().includes(word)),
  );
  return new Set(titles.flatMap(([, places]) => places.map(([page]) => docnames[page])));
}

let titled = null;

var Scorer = {
  score: ([page, , , , score]) => {
    titled ??= pagesWithTitle();
    const rank = RANKS.find(([pattern]) => pattern.test(page))[1];
    return score + rank + (titled.has(page) ? 20 : 0);
  },

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
