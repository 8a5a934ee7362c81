// Streams a file of raw 16 kHz audio with tutti.js over `ws`, and prints the events, one JSON line each.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { TuttiStream } from "../../../server/web/tutti.js";

const [url, file, modules] = process.argv.slice(2);
const WebSocket = createRequire(`${modules}/`)("ws");
const tell = (type) => (detail) => process.stdout.write(`${JSON.stringify({ type, ...detail, message: undefined })}\n`);
const bytes = readFileSync(file);
const pcm = new Int16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);

const stream = new TuttiStream(`${url}/v1/listen`, { WebSocket, resumable: true });
for (const type of ["open", "waiting", "refused", "lost", "Results", "ended", "failed"]) stream.on(type, tell(type));
stream.open();
for (let at = 0; at < pcm.length; at += 1280) await stream.write(pcm.slice(at, at + 1280));
await stream.close();
