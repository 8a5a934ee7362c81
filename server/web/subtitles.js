/** Subtitles of a transcript, by the rules and with the limits of `server/text/subtitles.py`. Pure. */

import { joined } from "./continuity.js";

const PAUSE_S = 0.4;
const LONGEST_S = 7;
const SHORTEST_MS = 500;
const LINE_COLUMNS = 42;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]/gu;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** Returns: the srt or vtt file of words with `text`, `start` and `end`. */
export function subtitles(words, form) {
  const vtt = form === "vtt";
  const shown = cues(words).map(({ start, end, lines }, at) => {
    const written = vtt ? lines.map((line) => line.replace(/[&<>]/g, (sign) => ESCAPES[sign])) : lines;
    const times = [start, end].map((ms) => clock(ms, vtt ? "." : ",")).join(" --> ");
    return [...(vtt ? [] : [at + 1]), times, ...written, "", ""].join("\n");
  });
  return (vtt ? "WEBVTT\n\n" : "") + shown.join("");
}

function cues(words) {
  let end = 0;
  return longEnough(passages(words.flatMap(pieces))).map((part, at, parts) => {
    const start = Math.max(Math.round(part[0].start * 1000), end);
    const spoken = Math.min(part.at(-1).end, parts[at + 1]?.[0].start ?? Infinity);
    end = Math.max(Math.round(spoken * 1000), start + SHORTEST_MS);
    return { start, end, lines: linesOf(part) };
  });
}

const columns = (text) => [...text].length + (text.match(WIDE)?.length ?? 0);
const textOf = (words) => joined(words.map(({ text }) => text));

/** Divide words at pauses, and what does not fit into one cue into halves. */
function passages(words) {
  const runs = [];
  for (const [at, word] of words.entries()) {
    if (at && word.start - words[at - 1].end < PAUSE_S) runs.at(-1).push(word);
    else runs.push([word]);
  }
  return runs.flatMap(halves);
}

function halves(words) {
  if (words.length === 1 || fits(words)) return [words];
  const widths = words.map(({ text }) => columns(text));
  const width = widths.reduce((sum, one) => sum + one, 0);
  let [left, least, best] = [0, Infinity, 1];
  for (let at = 1; at < words.length; at++) {
    left += widths[at - 1];
    if (Math.abs(2 * left - width) < least) [least, best] = [Math.abs(2 * left - width), at];
  }
  return [...halves(words.slice(0, best)), ...halves(words.slice(best))];
}

const fits = (words) => words.at(-1).end - words[0].start <= LONGEST_S && linesOf(words) !== null;

/** Returns: one line, else two of the most equal widths; null if more are needed. */
function linesOf(words) {
  const whole = textOf(words);
  if (columns(whole) <= LINE_COLUMNS) return [whole];
  if (columns(whole) > 2 * LINE_COLUMNS + 1) return null;
  const pairs = words.slice(1).map((_, at) => [textOf(words.slice(0, at + 1)), textOf(words.slice(at + 1))]);
  const wider = pairs.map((pair) => Math.max(...pair.map(columns)));
  const least = Math.min(...wider);
  return least <= LINE_COLUMNS ? pairs[wider.indexOf(least)] : null;
}

/** Cut a word that is longer than a line into lines, each with its share of the time. */
function pieces(word) {
  const [characters, cuts] = [[...word.text], [0]];
  let width = 0;
  for (const [at, character] of characters.entries()) {
    width += columns(character);
    if (width > LINE_COLUMNS) width = cuts.push(at) && columns(character);
  }
  if (cuts.length === 1) return [word];
  const each = (word.end - word.start) / characters.length;
  return cuts.map((first, at) => {
    const end = cuts[at + 1] ?? characters.length;
    const text = characters.slice(first, end).join("").trim();
    return { text, start: word.start + first * each, end: word.start + end * each };
  });
}

/** Join a part that the next one follows within SHORTEST_MS to a neighbor, where they fit into one cue. */
function longEnough(parts) {
  const kept = [];
  const short = (part, after) => (after[0].start - part[0].start) * 1000 < SHORTEST_MS;
  for (const [at, part] of parts.entries()) {
    const [before, after] = [kept.at(-1), parts[at + 1]];
    const alone = after && short(part, after) && !fits([...part, ...after]);
    if (before && (short(before, part) || alone) && fits([...before, ...part])) before.push(...part);
    else kept.push([...part]);
  }
  return kept;
}

function clock(ms, point) {
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const seconds = `${two((ms % 60000) / 1000)}${point}${String(ms % 1000).padStart(3, "0")}`;
  return `${two(ms / 3600000)}:${two((ms / 60000) % 60)}:${seconds}`;
}
