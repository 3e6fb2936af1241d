// Keeps the numbers on the page fresh: fetches the page again and swaps the parts marked data-live.
// Without it, or switched off, the page works as it is.
"use strict";

(() => {
  const PAUSE = 1000; // milliseconds between two looks
  const KEY = "encore-live";
  const toggle = document.querySelector("[data-live-switch]");
  if (!toggle) return;

  let on = true;
  try { on = localStorage.getItem(KEY) !== "off"; } catch { /* no storage: on */ }

  // Someone who is filling in a form must not have it taken away.
  const inUse = (part) => part.contains(document.activeElement) || part.querySelector("details[open]");

  const refresh = async () => {
    const answer = await fetch("/", { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other && !inUse(part) && other.innerHTML !== part.innerHTML) {
        part.replaceChildren(...other.childNodes);
      }
    }
  };

  const tick = async () => {
    if (on && !document.hidden) {
      try { await refresh(); } catch { /* the shop is away; look again later */ }
    }
    setTimeout(tick, PAUSE);
  };

  const show = () => toggle.setAttribute("aria-pressed", String(on));
  toggle.addEventListener("click", () => {
    on = !on;
    try { localStorage.setItem(KEY, on ? "on" : "off"); } catch { /* not remembered then */ }
    show();
  });
  show();
  toggle.hidden = false;
  setTimeout(tick, PAUSE);
})();
