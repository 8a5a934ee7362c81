// Drives @deepgram/sdk and ws for test_deepgram_node.py: scenarios come in, events go out, a JSON line each.
"use strict";

const { DeepgramClient } = require("@deepgram/sdk");
const WebSocket = require("ws");
const { readFileSync } = require("node:fs");
const { createInterface } = require("node:readline");

const CHUNK_BYTES = 1_601; // 50 ms and an odd byte

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = (event, more = {}) => process.stdout.write(`${JSON.stringify({ event, ...more })}\n`);

// A connection to the server for each part of the audio: the last one is finished, the others wait for the server.
// Ends at a normal close of an open connection, or at an error; with `again`, connects once more on request.
async function talk({ host, key, parts, options, again = false }) {
  const [http, ws] = [`http://${host}`, `ws://${host}`];
  const environment = { base: http, production: ws, agent: ws, agentRest: http };
  const client = new DeepgramClient({ apiKey: key, environment });
  const stream = await client.listen.v1.connect(options);
  let opened = 0;
  const ended = new Promise((resolve) => {
    stream.on("open", () => {
      tell("open");
      say(stream, readFileSync(parts[opened]), ++opened === parts.length);
    });
    stream.on("message", (message) => tell("message", { message }));
    stream.on("error", (error) => {
      tell("error", { message: error.message });
      if (!again) resolve();
      else lines.next().then(() => stream.connect());
    });
    stream.on("close", ({ code }) => {
      tell("close", { code });
      if (code === 1000 && opened > 0) resolve();
    });
  });
  stream.connect();
  stream.waitForOpen().catch(() => {}); // a refusal is reported by the event
  await ended;
  await new Promise(setImmediate); // lets the effects of the close happen
  tell("waiting", { timers: process.getActiveResourcesInfo().filter((kind) => kind === "Timeout").length });
}

function say(stream, audio, last) {
  stream.sendKeepAlive({ type: "KeepAlive" });
  for (let start = 0; start < audio.length; start += CHUNK_BYTES) {
    stream.sendMedia(audio.subarray(start, start + CHUNK_BYTES));
  }
  if (last) {
    stream.sendFinalize({ type: "Finalize" });
    stream.sendCloseStream({ type: "CloseStream" });
  }
}

// Turn events: a Configure, then the audio, the end of the turn by the client, and the end of the stream.
async function turns({ host, key, audio, options, configure }) {
  const [http, ws] = [`http://${host}`, `ws://${host}`];
  const client = new DeepgramClient({ apiKey: key, environment: { base: http, production: ws, agent: ws, agentRest: http } });
  const stream = await client.listen.v2.connect(options);
  const ended = new Promise((resolve) => {
    stream.on("message", (message) => tell("message", { message }));
    stream.on("error", (error) => tell("error", { message: error.message }));
    stream.on("close", ({ code }) => {
      tell("close", { code });
      resolve();
    });
  });
  stream.connect();
  await stream.waitForOpen();
  stream.sendConfigure({ type: "Configure", ...configure });
  const samples = readFileSync(audio);
  for (let start = 0; start < samples.length; start += CHUNK_BYTES) {
    stream.sendMedia(samples.subarray(start, start + CHUNK_BYTES));
  }
  stream.sendForceEndTurn({ type: "ForceEndTurn" });
  stream.sendCloseStream({ type: "CloseStream" });
  await ended;
}

// Authentication as in a browser: the key is one of the offered subprotocols.
async function subprotocol({ host, key, query, scheme, origin }) {
  const socket = new WebSocket(`ws://${host}/v1/listen?${query}`, [scheme, key], origin ? { origin } : {});
  await new Promise((resolve) => {
    socket.on("open", () => {
      tell("open", { protocol: socket.protocol, extensions: socket.extensions });
      socket.send(JSON.stringify({ type: "CloseStream" }));
    });
    socket.on("message", (data) => tell("message", { message: JSON.parse(data) }));
    socket.on("error", (error) => tell("error", { message: error.message }));
    socket.on("close", (code) => {
      tell("close", { code });
      resolve();
    });
  });
}

async function main() {
  for await (const line of lines) {
    const { scenario, ...rest } = JSON.parse(line);
    await { talk, turns, subprotocol }[scenario](rest).catch((error) => tell("failed", { why: error.stack }));
    tell("done");
  }
  process.exit(0); // a client that is still reconnecting would keep it alive
}

main();
