// Refreshes the pages about held locks, if wanted, and counts the selected locks. The pages work without it.
"use strict";

(() => {
  const KEY = "distlock.live";
  const button = document.getElementById("dl-live");
  const note = document.getElementById("dl-live-note");

  const checkboxes = () => [...document.querySelectorAll(".dl-select input[name]")];
  const selected = () => checkboxes().filter((checkbox) => checkbox.checked);

  // Selecting

  const showSelected = () => {
    const count = document.getElementById("dl-selected-count");
    const all = document.getElementById("dl-all");
    const number = selected().length;
    if (count) {
      const text = number === 1 ? count.dataset.one : count.dataset.many.replace("%d", number);
      count.textContent = number ? text : "";
    }
    if (all) {
      all.hidden = false;
      all.checked = number > 0 && number === checkboxes().length;
      all.indeterminate = number > 0 && !all.checked;
    }
  };

  document.addEventListener("change", (event) => {
    if (!event.target.closest(".dl-select")) return;
    if (event.target.id === "dl-all") {
      for (const checkbox of checkboxes()) checkbox.checked = event.target.checked;
    }
    showSelected();
    showLive();
  });
  window.addEventListener("pageshow", showSelected); // the browser may restore the selection

  // Refreshing

  const seconds = (name) => 1000 * Number(button.dataset[name]); // a data attribute of the button, in ms
  const age = document.getElementById("dl-age");
  let asOf = performance.timeOrigin; // when the shown data was requested, by the browser's clock
  let on = false;
  let failure = "";
  let timer = 0;
  let refreshing = false;

  const pausedBecause = () => {
    const open = document.querySelector("[data-dl-live] details[open]");
    if (open || selected().length) return button.dataset.pausedSelected;
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
    button.toggleAttribute("data-paused", Boolean(paused || failure || stale));
    button.closest(".dl-panel").classList.toggle("dl-stale", stale);
    age.hidden = old <= seconds("staleSeconds");
    age.textContent = age.hidden ? "" : agoInWords(old);
    const text = on ? paused || failure : "";
    if (on && note.textContent !== text) note.textContent = text;
  };

  const remember = () => {
    try { localStorage.setItem(KEY, on ? "on" : "off"); } catch { /* no storage: not remembered */ }
  };

  // The focus must stay on the same element when its part of the page is replaced.
  const selector = (element) => {
    if (element.dataset.dlKey) return `[data-dl-key="${CSS.escape(element.dataset.dlKey)}"]`;
    if (element.id) return `#${CSS.escape(element.id)}`;
    const href = element.getAttribute("href");
    return href ? `a[href="${CSS.escape(href)}"]` : element.localName;
  };

  const replacePart = (part, fresh) => {
    const active = part.contains(document.activeElement) ? selector(document.activeElement) : null;
    const left = part.querySelector(".dl-table-wrap")?.scrollLeft ?? 0;
    part.replaceChildren(...fresh.childNodes);
    const wrap = part.querySelector(".dl-table-wrap");
    if (wrap) wrap.scrollLeft = left;
    if (active) part.querySelector(active)?.focus({ preventScroll: true });
  };

  // Load the page again; throws if it has not come completely within the limit.
  const load = async () => {
    const address = new URL(window.location.href);
    address.searchParams.delete("retry"); // wait for a silent backend once, not at each refresh
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
      on = false; // this is the sign-in page
      failure = "";
      note.textContent = button.dataset.signedOut;
      return;
    }
    if (!on || pausedBecause()) return; // paused meanwhile
    for (const part of document.querySelectorAll("[data-dl-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other) part.replaceChildren();
      else if (other.innerHTML !== part.innerHTML) replacePart(part, other);
    }
    showSelected();
    failure = "";
    asOf = askedAt;
    document.body.dataset.dlRefreshed = String(Number(document.body.dataset.dlRefreshed || 0) + 1);
  };

  const refreshAndRepeat = async () => {
    if (refreshing) return; // it sets the next timer itself
    refreshing = true;
    if (on && !pausedBecause()) {
      try { await refresh(); } catch { failure = button.dataset.failed; }
    }
    refreshing = false;
    showLive();
    clearTimeout(timer); // a click may have set one meanwhile
    timer = on ? setTimeout(refreshAndRepeat, seconds("seconds")) : 0;
  };

  const refreshNow = () => {
    showLive();
    clearTimeout(timer);
    timer = on ? setTimeout(refreshAndRepeat, 0) : 0;
  };

  if (button) {
    button.hidden = false;
    on = button.hasAttribute("data-on"); // unless its reader has said otherwise, here or on another page
    try { on = (localStorage.getItem(KEY) ?? (on ? "on" : "off")) === "on"; } catch { /* no storage */ }
    button.addEventListener("click", () => {
      on = !on;
      failure = note.textContent = "";
      remember();
      refreshNow();
    });
    document.addEventListener("visibilitychange", refreshNow);
    setInterval(showLive, 1000);
    showLive();
    if (on) timer = setTimeout(refreshAndRepeat, seconds("seconds"));
  }
})();
