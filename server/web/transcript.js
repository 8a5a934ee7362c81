/** The transcript on the page: finals as paragraphs, and one open line whose last words may still change. */

const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;
const UNSURE = 0.6; // below this confidence a word is also underlined: not everyone sees colors

/** Writes into two elements: a log that screen readers announce, and the open line, which they do not. */
export class Transcript {
  #log;
  #open;
  #words = []; // of the finals of the last source

  constructor(log, open) {
    this.#log = log;
    this.#open = open;
  }

  get text() {
    return Array.from(this.#log.querySelectorAll(".said"), (said) => said.textContent).join("\n");
  }

  /** Words of the last source, as shown. */
  get words() {
    return this.#words.map((word) => ({ text: written(word), start: word.start, end: word.end }));
  }

  get isEmpty() {
    return !this.#log.hasChildNodes();
  }

  clear() {
    this.#words = [];
    this.#log.replaceChildren();
    this.#open.replaceChildren();
  }

  /** Start the transcript of another source, with its name as a heading unless the log is empty. */
  begin(name) {
    this.#words = [];
    this.#open.replaceChildren();
    if (this.isEmpty) return;
    const heading = document.createElement("h3");
    heading.textContent = name;
    this.#log.append(heading);
  }

  /** Show a result of the stream: stable words are solid, the others faded. */
  show({ words, stableWords, isFinal, start }) {
    const spans = words.flatMap((word, i) => [between(words[i - 1], word), wordSpan(word, i < stableWords)]);
    this.#open.replaceChildren(...(isFinal ? [] : spans));
    if (isFinal) this.#words.push(...words);
    if (isFinal && words.length) this.#log.append(paragraph(spans, words[0].start ?? start));
  }
}

const written = ({ word, punctuated_word: shown }) => shown ?? word;

/** Returns: the separator of two words: a space, unless both are of a script that is written without spaces. */
function between(before, after) {
  if (!before) return "";
  return UNSPACED.test(written(before).at(-1)) && UNSPACED.test(written(after)[0]) ? "" : " ";
}

function wordSpan(word, stable) {
  const { confidence } = word;
  const span = document.createElement("span");
  span.textContent = written(word);
  span.className = stable ? "word stable" : "word unstable";
  span.title = `confidence ${Math.round(confidence * 100)} %`;
  if (word.speaker !== undefined) {
    span.title = `speaker ${word.speaker + 1}, ${span.title}`;
    span.dataset.speaker = word.speaker;
  }
  if (stable) span.style.setProperty("--doubt", (1 - confidence).toFixed(2));
  if (stable && confidence < UNSURE) span.classList.add("unsure");
  return span;
}

function paragraph(spans, startSeconds) {
  const [row, time, said] = ["p", "time", "span"].map((name) => document.createElement(name));
  const whole = Math.floor(startSeconds);
  time.textContent = `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
  time.setAttribute("aria-hidden", "true");
  said.className = "said";
  said.append(...spans);
  row.append(time, said);
  return row;
}
