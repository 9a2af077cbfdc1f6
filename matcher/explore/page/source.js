// Where the page's answers come from: the server that sent it, or, in a saved page, the record in it.
"use strict";

const record = JSON.parse(document.getElementById("recorded")?.textContent ?? "null");

function bytesOf(packed) {
  const letters = atob(packed), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

const unpacked = (packed) => new Float32Array(bytesOf(packed).buffer);
const levelsOf = (map) => bytesOf(map.levels);

async function ask(address, options = {}) {
  const response = await fetch(address, options);
  if (!response.ok) {
    const text = await response.text();
    let reason = text;
    try { reason = JSON.parse(text).error; } catch { /* it is plain text */ }
    throw new Error(reason);
  }
  return response;
}

const told = async (address, options) => (await ask(address, options)).json();

let opened = 0; // pictures change under the same address

const server = {
  live: true,
  pair: () => told("api/pair"),
  picture: (side) => `image/${side}?opened=${opened}`,
  matches: (method) => told(`api/matches?method=${encodeURIComponent(method)}`),
  nearest: (point) => point,
  pixels: ([x, y], signal) => told(`api/pixels?x=${x}&y=${y}`, { signal }),
  answer: (method, [x, y], signal) =>
    told(`api/answer?method=${encodeURIComponent(method)}&x=${x}&y=${y}`, { signal }),
  exchange: async (side, file) => {
    const headers = { "content-type": "application/octet-stream", "x-file-name": encodeURIComponent(file.name) };
    const pair = await told(`api/images/${side}`, { method: "POST", headers, body: file });
    opened += 1;
    return pair;
  },
  save: async () => (await ask("export")).blob(),
};

function numberOf([x, y]) {
  const far = record.points.map(([a, b]) => (a - x) ** 2 + (b - y) ** 2);
  return far.indexOf(Math.min(...far));
}

const recorded = {
  live: false,
  pair: async () => record.pair,
  picture: (side) => record.images[side],
  matches: async (method) => record.methods[method].matches,
  nearest: (point) => record.points[numberOf(point)],
  pixels: async (point) => record.pixels[numberOf(point)],
  answer: async (method, point) => record.methods[method].answers[numberOf(point)],
};

const source = record ? recorded : server;
