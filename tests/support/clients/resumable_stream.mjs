// Streams a file of raw 16 kHz audio with tutti.js over `ws`, and prints the events, one JSON line each. With tickets;
// or with the text of another speaker, and key terms that are looked for in the last 10 s at the end.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { TuttiStream } from "../../../server/web/tutti.js";

const [url, file, modules, context, keyterm] = process.argv.slice(2);
const WebSocket = createRequire(`${modules}/`)("ws");
const tell = (type) => (detail) => process.stdout.write(`${JSON.stringify({ type, ...detail, message: undefined })}\n`);
const bytes = readFileSync(file);
const pcm = new Int16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);

const options = context ? { rewind: 10 } : { resumable: true };
const stream = new TuttiStream(`${url}/v1/listen`, { WebSocket, ...options });
const types = ["open", "waiting", "refused", "lost", "Results", "ContextSuccess", "ended", "failed"];
for (const type of types) stream.on(type, tell(type));
stream.open();
if (context) stream.addContext(context);
for (let at = 0; at < pcm.length; at += 1280) await stream.write(pcm.slice(at, at + 1280));
if (context) {
  stream.finalize();
  stream.rewind(10, [keyterm]);
  stream.addContext(""); // answered with the terms that count
}
await stream.close();
