"use strict";
// What pages do beyond reading and sending forms: they renew themselves, and listen to a few keys. All of it may be missing.
(() => {
  const TICK_MS = 5000, IDLE_MS = 15 * 60 * 1000;
  let lastInput = Date.now(), paused = false, row = -1;
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const live = () => document.getElementById("live");
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchstart"]) {
    addEventListener(kind, () => { lastInput = Date.now(); }, { passive: true });
  }

  // Nothing is renewed under somebody's hands: while text is selected, a form is open or an event is picked.
  const isBusy = () =>
    String(getSelection()) !== "" ||
    document.querySelector("#live details.act[open], #live .pick:checked, dialog[open]") !== null ||
    (document.activeElement && document.activeElement.matches("#live input, #live select, #live textarea"));
  const wants = () => live() && live().hasAttribute("hx-get") && !paused && document.visibilityState === "visible" &&
    Date.now() - lastInput < IDLE_MS && !isBusy();
  setInterval(() => { if (wants() && window.htmx) window.htmx.trigger(document.body, "tick"); }, TICK_MS);

  const pulse = document.getElementById("pulse");
  if (pulse) {
    pulse.hidden = false;
    pulse.addEventListener("click", () => {
      paused = !paused;
      pulse.setAttribute("aria-pressed", String(!paused));
    });
  }

  // What was unfolded, and where the focus was, stay so.
  let open = [], focused = null;
  document.addEventListener("htmx:beforeSwap", () => {
    open = all("#live details[open][id]").map((one) => one.id);
    const at = document.activeElement;
    focused = at && live() && live().contains(at) ? at.getAttribute("href") || at.getAttribute("aria-label") : null;
  });
  document.addEventListener("htmx:afterSwap", () => {
    document.body.classList.remove("stale");
    for (const id of open) { const one = document.getElementById(id); if (one) one.open = true; }
    if (focused) {
      const again = all("#live a[href], #live [aria-label]").find((one) => (one.getAttribute("href") || one.getAttribute("aria-label")) === focused);
      if (again) again.focus({ preventScroll: true });
    }
    mark();
  });
  for (const kind of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(kind, () => document.body.classList.add("stale"));
  }

  const rows = () => all("tr.go");
  const mark = () => rows().forEach((one, place) => one.classList.toggle("at", place === row));
  const move = (by) => {
    const there = rows();
    if (!there.length) return;
    row = Math.max(0, Math.min(there.length - 1, row + by));
    mark();
    const link = there[row].querySelector("a");
    if (link) link.focus({ preventScroll: true });
    there[row].scrollIntoView({ block: "nearest" });
  };
  const keys = {
    "/": () => { const filter = document.querySelector("form.filters input:not([type=hidden])"); if (filter) filter.focus(); },
    j: () => move(1),
    k: () => move(-1),
    o: () => { const at = rows()[row]; const link = at && at.querySelector("a"); if (link) link.click(); },
    "?": () => document.getElementById("keys").showModal(),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  all(".hint").forEach((one) => { one.hidden = false; });

  for (const button of all("[data-copy]")) {
    if (!navigator.clipboard) break;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
    });
  }
})();
