// Asks every few seconds how far the run is; the report's parts are replaced when its files have changed.
"use strict";
(function () {
  const SECONDS = 5;
  let stamp = new URL(document.currentScript.src).searchParams.get("stamp"); // of what is shown

  // Links to the report of each run, for several.
  function linked(page) {
    for (const cell of page.querySelectorAll(".facts dd")) {
      if (!/^\?run=\d+$/.test(cell.textContent)) continue;
      const link = document.createElement("a");
      link.href = cell.textContent;
      link.textContent = "report";
      cell.replaceChildren(link);
    }
  }

  async function follow() {
    const lead = document.querySelector(".lead");
    try {
      const now = await (await fetch(`now${location.search}`)).json();
      lead.textContent = now.lead ?? now.error;
      if (now.stamp === undefined || now.stamp === stamp || document.visibilityState !== "visible") return;
      await replace();
      stamp = now.stamp;
    } catch {
      lead.textContent = "The server does not answer. Start `segmenter view` again.";
    }
  }

  async function replace() {
    const found = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
    const chosen = [...document.querySelectorAll("select")].map((one) => [one.id, one.value]);
    const open = [...document.querySelectorAll("details")].map((one) => one.open);
    linked(found);
    for (const place of ["header", "main", "#data"]) {
      document.querySelector(place).replaceWith(document.adoptNode(found.querySelector(place)));
    }
    document.querySelector(".lead").setAttribute("aria-live", "polite");
    const details = document.querySelectorAll("details");
    if (details.length === open.length) details.forEach((one, i) => { one.open = open[i]; });
    document.dispatchEvent(new Event("parts"));
    for (const [id, value] of chosen) {
      const select = document.getElementById(id);
      if (!select || select.value === value) continue;
      select.value = value;
      select.dispatchEvent(new Event("change"));
    }
  }

  linked(document);
  document.querySelector(".lead").setAttribute("aria-live", "polite");
  follow();
  setInterval(follow, 1000 * SECONDS);
})();
