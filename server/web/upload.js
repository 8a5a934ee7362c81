/** One recording sent as a whole to `POST /v1/listen`, so that the browser need not decode it. */

import { TuttiError } from "./tutti.js";

/** A request whose progress is reported and which can be aborted. */
export class Upload {
  #request = new XMLHttpRequest(); // `fetch` does not report how much of a body was sent

  /** `query`: as of `TuttiStream`; `onProgress` is called with the bytes sent and the bytes of the file. */
  constructor(url, file, { key, query, onProgress }) {
    const request = this.#request;
    /** The answer, or a TuttiError with the server's sentence, without one after `abort`. */
    this.done = new Promise((resolve, reject) => {
      const fail = (message, status = 0) => reject(new TuttiError(message, { status, final: true }));
      const address = new URL(url);
      for (const [name, value] of Object.entries(query))
        for (const one of [value].flat()) if (one !== undefined) address.searchParams.append(name, one);
      request.open("POST", address);
      if (key) request.setRequestHeader("Authorization", `Token ${key}`);
      request.setRequestHeader("Content-Type", "application/octet-stream"); // the server looks at the first bytes
      request.responseType = "json";
      request.upload.onloadstart = request.upload.onprogress = ({ loaded, total }) => onProgress(loaded, total);
      request.onload = () => {
        const { status, response } = request; // null if it is not JSON
        if (status === 200 && response) resolve(response);
        else fail(response?.err_msg ?? `HTTP ${status}`, status);
      };
      request.onerror = () => fail("The connection was lost, or the file changed. Send the recording again.");
      request.onabort = () => fail("");
      request.send(file);
    });
  }

  abort() {
    this.#request.abort();
  }
}
