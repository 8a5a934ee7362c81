/** Audio worklet: mono blocks of 128 floats in, 16-bit messages out through the port. "flush" requests the rest. */

import { Gatherer } from "./pcm.js";

class PcmProcessor extends AudioWorkletProcessor {
  #gatherer;

  constructor({ processorOptions: { size, divide } }) {
    super();
    this.#gatherer = new Gatherer(size, divide);
    this.port.onmessage = () => {
      this.#post(this.#gatherer.rest());
      this.port.postMessage(null); // nothing follows
    };
  }

  process([[mono]]) {
    if (mono) for (const pcm of this.#gatherer.add(mono)) this.#post(pcm); // an input without a source has no channels
    return true;
  }

  #post(pcm) {
    this.port.postMessage(pcm, [pcm.buffer]);
  }
}

registerProcessor("pcm", PcmProcessor);
