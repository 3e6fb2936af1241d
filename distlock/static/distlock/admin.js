// Keeps the pages about held locks fresh, if wanted, and counts what is ticked. They work without it.
"use strict";

(() => {
  const KEY = "distlock.live";
  const button = document.getElementById("dl-live");
  const note = document.getElementById("dl-live-note");
  const form = document.getElementById("dl-form");

  const ticks = () => (form ? [...form.querySelectorAll('input[name="hold"]')] : []);
  const ticked = () => ticks().filter((tick) => tick.checked);

  // Choosing

  const showChosen = () => {
    const count = document.getElementById("dl-count");
    const all = document.getElementById("dl-all");
    const number = ticked().length;
    if (count) {
      const text = number === 1 ? count.dataset.one : count.dataset.many.replace("%d", number);
      count.textContent = number ? text : "";
    }
    if (all) {
      all.hidden = false;
      all.checked = number > 0 && number === ticks().length;
      all.indeterminate = number > 0 && !all.checked;
    }
  };

  if (form) {
    form.addEventListener("change", (event) => {
      if (event.target.id === "dl-all") {
        for (const tick of ticks()) tick.checked = event.target.checked;
      }
      showChosen();
      showLive();
    });
    window.addEventListener("pageshow", showChosen); // a browser may bring ticks back
  }

  // Refreshing

  const pause = () => 1000 * Number(button.dataset.seconds); // between two looks
  let on = false;
  let trouble = "";
  let timer = 0;

  const pausedBecause = () => {
    if (ticked().length) return button.dataset.pausedTicked;
    if (document.hidden) return button.dataset.pausedHidden;
    return "";
  };

  const showLive = () => {
    if (!button) return;
    const paused = on ? pausedBecause() : "";
    button.setAttribute("aria-pressed", String(on));
    button.toggleAttribute("data-paused", Boolean(paused || trouble));
    const text = on ? paused || trouble : "";
    if (note.textContent !== text) note.textContent = text;
  };

  const remember = () => {
    try { localStorage.setItem(KEY, on ? "on" : "off"); } catch { /* not remembered then */ }
  };

  // Whoever is at an element of a part must find themselves at the same one afterwards.
  const selector = (element) => {
    if (element.dataset.dlKey) return `[data-dl-key="${CSS.escape(element.dataset.dlKey)}"]`;
    if (element.id) return `#${CSS.escape(element.id)}`;
    const href = element.getAttribute("href");
    return href ? `a[href="${CSS.escape(href)}"]` : element.localName;
  };

  const swap = (part, fresh) => {
    const active = part.contains(document.activeElement) ? selector(document.activeElement) : null;
    const left = part.querySelector(".dl-table-wrap")?.scrollLeft ?? 0;
    part.replaceChildren(...fresh.childNodes);
    const wrap = part.querySelector(".dl-table-wrap");
    if (wrap) wrap.scrollLeft = left;
    if (active) part.querySelector(active)?.focus({ preventScroll: true });
  };

  const refresh = async () => {
    const answer = await fetch(window.location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.getElementById("dl-live")) {
      on = false; // not ours: the sign-in page
      trouble = "";
      note.textContent = button.dataset.signedOut;
      button.setAttribute("aria-pressed", "false");
      return;
    }
    if (!on || pausedBecause()) return; // it came too late
    for (const part of document.querySelectorAll("[data-dl-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other) part.replaceChildren();
      else if (other.innerHTML !== part.innerHTML) swap(part, other);
    }
    showChosen();
    trouble = "";
    document.body.dataset.dlRefreshed = String(Number(document.body.dataset.dlRefreshed || 0) + 1);
  };

  const tick = async () => {
    if (on && !pausedBecause()) {
      try { await refresh(); } catch { trouble = button.dataset.failed; }
      if (on) showLive();
    }
    timer = on ? setTimeout(tick, pause()) : 0;
  };

  if (button) {
    button.hidden = false;
    try { on = localStorage.getItem(KEY) === "on"; } catch { /* no storage: off */ }
    button.addEventListener("click", () => {
      on = !on;
      trouble = "";
      remember();
      showLive();
      clearTimeout(timer);
      timer = on ? setTimeout(tick, 0) : 0;
    });
    document.addEventListener("visibilitychange", showLive);
    showLive();
    if (on) timer = setTimeout(tick, pause());
  }
})();
