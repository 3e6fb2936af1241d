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

  const seconds = (name) => 1000 * Number(button.dataset[name]); // what the page says, in ms
  const age = document.getElementById("dl-age");
  let asOf = performance.timeOrigin; // when what is shown was asked for, by the browser's clock
  let on = false;
  let trouble = "";
  let timer = 0;
  let refreshing = false;

  const pausedBecause = () => {
    if (ticked().length) return button.dataset.pausedTicked;
    if (document.hidden) return button.dataset.pausedHidden;
    return "";
  };

  const agoInWords = (ms) => {
    const whole = Math.floor(ms / 1000);
    if (whole < 60) return age.dataset.secondsAgo.replace("%d", whole);
    if (whole < 3600) return age.dataset.minutesAgo.replace("%d", Math.floor(whole / 60));
    return age.dataset.hoursAgo.replace("%d", Math.floor(whole / 3600));
  };

  const showLive = () => {
    if (!button) return;
    const old = Date.now() - asOf;
    const paused = on ? pausedBecause() : "";
    const stale = on && !paused && old > seconds("staleSeconds");
    button.setAttribute("aria-pressed", String(on));
    button.toggleAttribute("data-paused", Boolean(paused || trouble || stale));
    button.closest(".dl-panel").classList.toggle("dl-stale", stale);
    age.hidden = old <= seconds("staleSeconds");
    age.textContent = age.hidden ? "" : agoInWords(old);
    const text = on ? paused || trouble : "";
    if (on && note.textContent !== text) note.textContent = text;
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

  // The page as it is now; an error if it does not come in time, however much of it has come.
  const load = async () => {
    const address = new URL(window.location.href);
    address.searchParams.delete("again"); // a silent backend is waited for once, not each time
    const stop = new AbortController();
    const limit = setTimeout(() => stop.abort(), seconds("limitSeconds"));
    try {
      const options = { headers: { Accept: "text/html" }, cache: "no-store", signal: stop.signal };
      const answer = await fetch(address, options);
      if (!answer.ok) throw new Error(answer.statusText);
      return new DOMParser().parseFromString(await answer.text(), "text/html");
    } finally {
      clearTimeout(limit);
    }
  };

  const refresh = async () => {
    const askedAt = Date.now();
    const fresh = await load();
    if (!fresh.getElementById("dl-live")) {
      on = false; // not ours: the sign-in page
      trouble = "";
      note.textContent = button.dataset.signedOut;
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
    asOf = askedAt;
    document.body.dataset.dlRefreshed = String(Number(document.body.dataset.dlRefreshed || 0) + 1);
  };

  const tick = async () => {
    if (refreshing) return; // that one goes on by itself
    refreshing = true;
    if (on && !pausedBecause()) {
      try { await refresh(); } catch { trouble = button.dataset.failed; }
    }
    refreshing = false;
    showLive();
    clearTimeout(timer); // of a click meanwhile
    timer = on ? setTimeout(tick, seconds("seconds")) : 0;
  };

  const refreshNow = () => {
    showLive();
    clearTimeout(timer);
    timer = on ? setTimeout(tick, 0) : 0;
  };

  if (button) {
    button.hidden = false;
    try { on = localStorage.getItem(KEY) === "on"; } catch { /* no storage: off */ }
    button.addEventListener("click", () => {
      on = !on;
      trouble = note.textContent = "";
      remember();
      refreshNow();
    });
    document.addEventListener("visibilitychange", refreshNow);
    setInterval(showLive, 1000);
    showLive();
    if (on) timer = setTimeout(tick, seconds("seconds"));
  }
})();
