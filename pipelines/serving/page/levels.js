// The levels of tokens (colours and bars, as in `bytelm score`) and their legends.

import { make } from "./dom.js";

const RANKS = [2, 11, 101, 1001];
const DIFFERENCES = [1, 3];

// Return the number of `thresholds` that a value reaches.
const reached = (thresholds, value) => thresholds.filter((each) => value >= each).length;

// Return a way to colour tokens: name(token, index) is the class, and `legend` has [class, text] pairs.
export function levelsOf(kind, thresholds) {
  const edges = [0, ...thresholds];
  const ranges = edges.map((edge, i) => (i < thresholds.length ? `${edge}–${edges[i + 1]}` : `${edge}+`));
  const inBits = ranges.map((range, i) => [`level-${i}`, range]);
  const of = (value, steps) => (value === undefined ? "unscored" : `level-${reached(steps, value)}`);
  return {
    surprisal: { title: "bits", name: (token) => of(token.bits, thresholds), legend: inBits },
    entropy: { title: "bits of entropy", name: (token) => of(token.entropy, thresholds), legend: inBits },
    rank: {
      title: "rank",
      name: (token) => of(token.rank, RANKS),
      legend: ["1", "2–10", "11–100", "101–1,000", "above"].map((text, i) => [`level-${i}`, text]),
    },
    pieces: { title: "", name: (_, i) => (i % 2 ? "odd" : "even"), legend: [] },
  }[kind];
}

// Return the class of a difference in bits: positive if the second run needs more.
export function differenceLevel(bits) {
  if (bits === undefined) return "unscored";
  const level = reached(DIFFERENCES, Math.abs(bits));
  return level ? `${bits > 0 ? "first" : "second"}-${level}` : "level-0";
}

// Return the legend of differences between two runs.
export function differenceLegend(first, second) {
  return [
    ["first-2", `${first} better by 3+`],
    ["first-1", "1–3"],
    ["level-0", "within 1 bit"],
    ["second-1", "1–3"],
    ["second-2", `${second} better by 3+`],
  ];
}

// Fill a legend with a title and [class, text] pairs; `unscored` adds the entry of tokens without a score.
export function drawLegend(element, title, pairs, unscored = false) {
  const entries = unscored ? [...pairs, ["unscored", "not scored"]] : pairs;
  const keys = entries.map(([level, textContent]) => make("span", { className: `token ${level}`, textContent }));
  element.replaceChildren(make("span", { className: "title" }, title), ...keys);
  element.hidden = !title;
}
