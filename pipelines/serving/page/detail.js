// The panel beside the tokens: the numbers of one token, and candidates as bars.

import { make } from "./dom.js";
import { alone, spoken } from "./pieces.js";

const number = (value, digits = 2) => value.toLocaleString("en", { maximumFractionDigits: digits });
export const bits = (value) => (value === undefined ? "not scored" : `${number(value)} bits`);

// Return a probability as a percentage, with more digits for small values.
export function percent(p) {
  if (p < 0.0001) return "<0.01 %";
  return `${(100 * p).toFixed(p < 0.001 ? 2 : p < 0.9995 ? 1 : 0)} %`;
}

// Return the label of a token for screen readers.
export function described(token) {
  const facts = token.bits === undefined ? [] : [bits(token.bits), token.rank && `rank ${number(token.rank)}`];
  return [spoken(token), ...facts.filter(Boolean)].join(", ");
}

// Return a heading: the token itself.
export function heading(token) {
  const piece = make("span", { className: "piece", dir: "auto" }, ...alone(token));
  return make("h3", { className: "shown", "aria-label": spoken(token) }, piece);
}

// Return the numbers of a token; `brief` leaves out those that do not depend on the run.
export function facts(token, brief = false) {
  const rows = [
    ["surprisal", token.bits === undefined ? "not scored" : bits(token.bits)],
    ["probability", token.bits === undefined ? "" : percent(2 ** -token.bits)],
    ["rank", token.rank && number(token.rank)],
    ["entropy", token.entropy !== undefined && bits(token.entropy)],
    ["id", typeof token.id === "number" && String(token.id)],
    ["bytes", token.special ? "special token" : (token.hex.match(/../g) ?? []).join(" ")],
  ];
  const shown = rows.slice(0, brief ? 4 : rows.length).filter(([, value]) => value);
  const pairs = shown.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  return make("dl", { className: "facts" }, ...pairs);
}

// Return bars for candidates [{hex, id, p}]. `chosen` is the id of the token in the text. With `onChoose`, a click on a
// candidate calls onChoose(candidate); an unused id cannot be chosen.
export function bars(candidates, { chosen, onChoose } = {}) {
  const largest = Math.max(...candidates.map(({ p }) => p));
  return make("ol", { className: "bars" }, ...candidates.map((each) => bar(each, each.p / largest, chosen, onChoose)));
}

function bar(candidate, share, chosen, onChoose) {
  const fill = make("span", { className: "fill" });
  fill.style.setProperty("--share", share);
  const content = [
    make("span", { className: "piece", dir: "auto" }, ...alone(candidate)),
    make("span", { className: "track", "aria-hidden": "true" }, fill),
    make("span", { className: "share" }, percent(candidate.p)),
  ];
  const own = candidate.id === chosen ? "own" : "";
  if (!onChoose || candidate.hex === null) return make("li", { className: own }, ...content);
  const label = `Continue with ${spoken(candidate)}, ${percent(candidate.p)}`;
  const button = make("button", { type: "button", "aria-label": label }, ...content);
  button.addEventListener("click", () => onChoose(candidate));
  return make("li", { className: own }, button);
}

// Fill the panel with nodes, or with a hint if there are none. It can be closed, because it covers part of the text on a
// narrow screen.
export function showIn(panel, hint, ...content) {
  panel.classList.toggle("empty", content.length === 0);
  if (content.length === 0) {
    panel.replaceChildren(make("p", { className: "hint" }, hint));
    return;
  }
  const close = make("button", { className: "close", type: "button" }, "Close");
  close.addEventListener("click", () => showIn(panel, hint));
  panel.replaceChildren(close, ...content);
}

// Return a paragraph with the totals of a text, after an optional name.
export function totals({ pseudo, tokens, bytes, bits: all, perplexity, bits_per_byte: perByte }, name) {
  const facts = [
    `${number(tokens)} token${tokens === 1 ? "" : "s"}`,
    bytes !== null && `${number(bytes)} byte${bytes === 1 ? "" : "s"}`,
    perByte !== null && `${number(perByte, 3)} bits per byte`,
    perplexity !== null && `${pseudo ? "pseudo-" : ""}perplexity ${number(perplexity)}`,
    `${number(all)} bits in all`,
  ];
  const title = name === undefined ? [] : [make("span", { className: "of" }, name)];
  return make("p", { className: "totals" }, ...title, ...facts.filter(Boolean).map((fact) => make("span", {}, fact)));
}
