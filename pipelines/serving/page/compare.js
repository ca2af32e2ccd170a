// Compare the scores of two runs on one text.

const length = (token) => (token.special ? 0 : token.hex.length / 2);
const bytes = (tokens) => tokens.map((token) => (token.special ? "" : token.hex)).join("");

// Return the shortest stretches of the text that begin and end at tokens of both runs: [{first, second, hex, bits}].
// `first` and `second` are each run's tokens in the stretch. `bits` is the second run's surprisal minus the first run's.
// Surprisals add up, so it is exact even if the tokenizers differ. It is undefined if a run did not score a token.
// Return undefined if the tokens differ in bytes, because only one run reads a special token where the text spells one.
export function aligned(first, second) {
  if (bytes(first) !== bytes(second)) return undefined;
  const stretches = [];
  let [i, j, a, b] = [0, 0, 0, 0];
  while (i < first.length || j < second.length) {
    const stretch = { first: [], second: [] };
    do {
      if (j >= second.length || (i < first.length && a <= b)) {
        a += length(first[i]);
        stretch.first.push(first[i++]);
      } else {
        b += length(second[j]);
        stretch.second.push(second[j++]);
      }
    } while (a !== b || (i < first.length && !length(first[i])) || (j < second.length && !length(second[j])));
    stretches.push(stretch);
  }
  return stretches.map(({ first, second }) => {
    const bits = sum(second) - sum(first);
    const shown = first.length ? first : second;
    return {
      first,
      second,
      hex: shown.map((token) => token.hex).join(""),
      special: shown.every((token) => token.special),
      bits: Number.isNaN(bits) ? undefined : bits,
    };
  });
}

// Return the bits of tokens; NaN if one was not scored.
export function sum(tokens) {
  return tokens.reduce((total, token) => total + (token.bits ?? NaN), 0);
}

// Return the index of the token that holds the byte at `offset`, or -1.
export function tokenAt(tokens, offset) {
  let end = 0;
  return tokens.findIndex((token) => (end += length(token)) > offset);
}

// Return the offset in bytes of the token at `index`.
export function offsetOf(tokens, index) {
  return tokens.slice(0, index).reduce((total, token) => total + length(token), 0);
}
