/** Displays of the audio level and of the results' latency. */

const QUIETEST_DB = -60;
const BAR_PX = 5;
const ANNOUNCE_EVERY = 12; // messages: the accessible value changes once a second, not twelve times

/** A strip of the last seconds' levels; a single bar if the user prefers reduced motion. */
export class LevelMeter {
  #canvas;
  #levels = [];
  #count = 0;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Add a message's level, in decibels below full scale. */
  add(db) {
    this.#levels.push(Math.max(0, 1 - db / QUIETEST_DB));
    const shown = Math.round(Math.max(db, QUIETEST_DB));
    if (this.#count++ % ANNOUNCE_EVERY === 0) this.#canvas.setAttribute("aria-valuenow", shown);
    this.#draw();
  }

  clear() {
    this.#levels = [];
    this.#count = 0;
    this.#canvas.setAttribute("aria-valuenow", QUIETEST_DB);
    this.#draw();
  }

  #draw() {
    const canvas = this.#canvas;
    const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio];
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const ink = canvas.getContext("2d");
    ink.setTransform(scale, 0, 0, scale, 0, 0);
    ink.clearRect(0, 0, width, height);
    ink.fillStyle = getComputedStyle(canvas).color;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      ink.fillRect(0, height / 2 - 3, width * (this.#levels.at(-1) ?? 0), 6);
      return;
    }
    this.#levels = this.#levels.slice(-Math.ceil(width / BAR_PX));
    for (let i = 0; i * BAR_PX < width; i++) {
      const bar = Math.max(2, height * (this.#levels.at(-1 - i) ?? 0));
      ink.beginPath();
      ink.roundRect(width - (i + 1) * BAR_PX, (height - bar) / 2, BAR_PX - 2, bar, 1.5);
      ink.fill();
    }
  }
}

/** Display of the latest value and the median of a series of durations, in milliseconds. */
export class Latency {
  #element;
  #seen = [];

  constructor(element) {
    this.#element = element;
  }

  add(seconds) {
    if (seconds === undefined) return;
    this.#seen = [...this.#seen.slice(-199), seconds * 1000];
    const middle = [...this.#seen].sort((a, b) => a - b)[Math.floor(this.#seen.length / 2)];
    this.#show(Math.round(this.#seen.at(-1)), `median ${Math.round(middle)}`);
  }

  clear() {
    this.#seen = [];
    this.#show("–", "");
  }

  #show(newest, note) {
    this.#element.querySelector("output").value = newest;
    this.#element.querySelector("small").textContent = note;
  }
}
