/** Conversion of the browser's float samples to 16-bit integers, and their level. Pure. */

export const MESSAGE_S = 0.08; // seconds of audio per message: one step of the shipped models
export const HIGHEST_HZ = 48000; // the server's limit

/** Float samples in [-1, 1] as Int16Array. */
export function toInt16(samples) {
  return Int16Array.from(samples, (x) => Math.max(-32768, Math.min(32767, Math.round(x * 32768))));
}

/** Root mean square of 16-bit samples in decibels below full scale, -90 for silence. */
export function level(pcm) {
  let sum = 0;
  for (const x of pcm) sum += x * x;
  return Math.max(-90, 10 * Math.log10(sum / Math.max(1, pcm.length) / 32768 ** 2));
}

/** Collects blocks into messages of `size` samples; averages `divide` samples to one if the rate is too high. */
export class Gatherer {
  #message;
  #filled = 0;
  #divide;
  #sum = 0;
  #summed = 0;

  constructor(size, divide = 1) {
    this.#message = new Float32Array(size);
    this.#divide = divide;
  }

  /** Add a block. Yields: each complete message, as Int16Array. */
  *add(block) {
    for (const sample of block) {
      this.#sum += sample;
      if (++this.#summed < this.#divide) continue;
      this.#message[this.#filled++] = this.#sum / this.#divide;
      this.#sum = this.#summed = 0;
      if (this.#filled === this.#message.length) yield this.rest();
    }
  }

  /** Remove and return the samples collected so far. */
  rest() {
    const pcm = toInt16(this.#message.subarray(0, this.#filled));
    this.#filled = 0;
    return pcm;
  }
}
