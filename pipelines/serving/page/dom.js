// Small helpers for the document. Text is always inserted as text, never as HTML.

// Return the element with this id.
export const byId = (id) => document.getElementById(id);

// Whether the device has a touch screen: nothing happens before a tap, and texts say "tap".
export const touch = matchMedia("(hover: none)").matches;
export const POINT = touch ? "Tap" : "Point at";
export const CLICK = touch ? "Tap" : "Click";

const SIGNS = /\w\(|[{}[\]=<>_\\#*+|$&^~@]/g; // rare in prose
const STATEMENT = /^(import [\w.]+|from [\w.]+ import .*|#include .*|.*\w\(.*\)\s*[:;{])$/m;

function isCode(text) {
  const plain = text.replaceAll(/<\|\w+\|>/g, ""); // without special tokens
  return STATEMENT.test(plain) || (plain.match(SIGNS) ?? []).length > Math.max(1, 0.02 * plain.length);
}

// Show the view of a field in the font for code if its text looks like code.
export function dress(field) {
  field.closest(".view").classList.toggle("code", isCode(field.value));
}

// Suggest a text in a field, unless the user has changed the text that was suggested before.
export function suggest(field, text) {
  if (field.value === (field.dataset.suggested ?? "")) field.dataset.suggested = field.value = text;
  dress(field);
}

// Return the label of a field of a request in the view that is shown, "" if it has none.
export function shownName(param) {
  const field = document.querySelector(`.view:not([hidden]) [name="${CSS.escape(param)}"]`);
  const label = [...(field?.labels ?? [])].find((each) => !each.hidden);
  const texts = [...(label?.childNodes ?? [])].filter(({ nodeType }) => nodeType === Node.TEXT_NODE);
  return texts.map(({ data }) => data.trim()).find(Boolean) ?? "";
}

// Return the sampling options in the fields of a view; empty fields are left out.
export function sampling(view) {
  const fields = [...byId(view).querySelectorAll(".sampling input")].filter(({ value }) => value !== "");
  return Object.fromEntries(fields.map(({ name, type, value }) => [name, type === "number" ? Number(value) : value]));
}

// Return a new element. `options` are properties (className, textContent, ...) and attributes (role, aria-...).
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Fill a select with [value, text] pairs. Keep the chosen value if it is still an option.
export function fillSelect(select, pairs) {
  const { value } = select;
  select.replaceChildren(...pairs.map(([value, textContent]) => make("option", { value: String(value), textContent })));
  if (pairs.some(([each]) => String(each) === value)) select.value = value;
}

// Return a function that calls `action` once, `milliseconds` after its last call.
export function debounced(milliseconds, action) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

// Return run(task), which aborts the previous task and returns task(signal), or null if a newer task has started.
export function latestOnly() {
  let current;
  return async (task) => {
    current?.abort();
    const mine = (current = new AbortController());
    try {
      const answer = await task(mine.signal);
      return mine === current ? answer : null;
    } catch (error) {
      if (mine !== current || error.name === "AbortError") return null;
      throw error;
    }
  };
}
