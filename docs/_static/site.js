/* What the theme and the search of Sphinx lack. */
"use strict";

/** Scroll the list of pages to the current one. */
function showCurrentPage() {
  const list = document.querySelector(".sidebar-scroll");
  const current = list?.querySelector(".current-page");
  if (!current) return;
  const [inner, outer] = [current.getBoundingClientRect(), list.getBoundingClientRect()];
  if (inner.bottom > outer.bottom) list.scrollTop += inner.top - outer.top - outer.height / 2;
}

/** Mark the sides at which a box has more to see; site.css fades them out. */
function markWhatScrolls(box) {
  const mark = () => {
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
}

/** Show the first state of a picture that scrolls, or the middle of one that has layers. */
function startAtContent(box) {
  const start = box.querySelector(".state-start, svg.flowchart")?.getBoundingClientRect();
  if (!start) return;
  const outer = box.getBoundingClientRect();
  box.scrollLeft += start.left + start.width / 2 - outer.left - outer.width / 2;
}

/** Return the section of a page that says most about the words, unless it is the page itself. */
function bestSection(html, words) {
  const page = new DOMParser().parseFromString(html, "text/html");
  let best = { score: 0 };
  for (const section of page.querySelectorAll('[role="main"] section[id]')) {
    const own = [...section.children].filter((child) => child.tagName !== "SECTION");
    const title = own[0].textContent.toLowerCase();
    const text = own.map((child) => child.textContent).join(" ").toLowerCase();
    let score = 0;
    for (const word of [...words].map((each) => each.toLowerCase())) {
      const count = text.split(word).length - 1;
      score += (count && 100 + Math.min(count, 9)) + (title.includes(word) && 20);
    }
    if (score > best.score) best = { score, id: section.id, title: own[0], section };
  }
  const isPage = !best.section || !best.section.parentElement.closest("section");
  best.title?.querySelector(".headerlink")?.remove();
  return isPage ? null : { anchor: `#${best.id}`, title: best.title.textContent.trim() };
}

/** Let a hit in the text of a page lead to its section. */
function linkToSections() {
  const makeSummary = Search.makeSearchSummary;
  Search.makeSearchSummary = (html, words, anchor) => {
    const found = anchor ? null : bestSection(html, words);
    const summary = makeSummary.call(Search, html, words, found?.anchor ?? anchor);
    const link = () => {
      const hit = summary?.parentElement?.querySelector("a");
      if (!hit) return;
      hit.href += found.anchor;
      hit.append(` > ${found.title}`);
    };
    if (found) queueMicrotask(link); // when Sphinx has put the summary below the link
    return summary;
  };
}

document.addEventListener("DOMContentLoaded", () => {
  showCurrentPage();
  document.querySelectorAll(".diagram").forEach(startAtContent);
  document.querySelectorAll(".diagram, .table-wrapper, pre").forEach(markWhatScrolls);
  if (typeof Search !== "undefined") linkToSections();
});
