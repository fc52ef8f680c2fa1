// Keeps an open page up to date, and adds keys. Every page works without it.
"use strict";

const REFRESH_MS = 5000;
const TIMEOUT_MS = 15000;
const PART = { "X-Console-Part": "1" };

// Blank text between these elements' children means nothing, and would only be in the way.
const BLOCKS = new Set(["MAIN", "SECTION", "TABLE", "THEAD", "TBODY", "TR", "UL", "DL"]);

function parts(node) {
  const all = [...node.childNodes];
  if (!BLOCKS.has(node.nodeName)) return all;
  const isBlank = (one) => one.nodeType === Node.TEXT_NODE && !one.nodeValue.trim();
  all.filter(isBlank).forEach((one) => one.remove());
  return all.filter((one) => !isBlank(one));
}

// Makes `old` look like `fresh` with as few changes as possible, so that focus, selection and scrolling stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.id || fresh.id) && old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.hasAttribute("data-drawn")) return; // a chart, which gets its points by itself
  if (old === document.activeElement && old.matches("input, select, textarea")) return;
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  const olds = parts(old), news = parts(fresh);
  const byId = new Map(olds.filter((one) => one.id).map((one) => [one.id, one]));
  news.forEach((one, at) => {
    const here = old.childNodes[at];
    const known = one.id && byId.get(one.id);
    if (known && known !== here) old.insertBefore(known, here || null);
    const now = old.childNodes[at];
    if (now) morph(now, one);
    else old.append(one);
  });
  while (old.childNodes.length > news.length) old.lastChild.remove();
}

let refreshing = false;
async function refresh() {
  const main = document.querySelector("main[data-live]");
  if (!main || document.hidden || refreshing || !getSelection().isCollapsed) return;
  refreshing = true;
  try {
    const answer = await fetch(location.href, { headers: PART, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.status === 401) location.reload();
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(`<main>${await answer.text()}</main>`, "text/html").querySelector("main");
    for (const { name, value } of main.attributes) fresh.setAttribute(name, value);
    const focused = document.activeElement;
    morph(main, fresh);
    // An element that was moved has lost the focus.
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    document.dispatchEvent(new Event("console:refreshed"));
  } catch {
    // The server is away for a moment; the page says how old its figures are once it is back.
  } finally {
    refreshing = false;
  }
}
setInterval(refresh, REFRESH_MS);
document.addEventListener("visibilitychange", refresh);

// "/" goes to the search, "g" and a letter to a page, as the list of pages has them; "?" shows all keys.
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) {
    if (event.key === "Escape" && event.target.id === "q") event.target.blur();
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("q")?.select();
  } else if (event.key === "?") {
    document.getElementById("keys").showModal();
  } else if (going) {
    going = false;
    const pages = { c: "/", b: "/bookies", d: "/disks", s: "/streams", u: "/cursors", n: "/namespaces", l: "/ledgers", h: "/healing", e: "/events" };
    if (pages[event.key]) location.href = pages[event.key];
  } else {
    going = event.key === "g";
  }
});

// The current page is in view where the list of pages scrolls.
document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
