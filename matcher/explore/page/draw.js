// Everything that is drawn: heat over image 1, marks, lines, enlarged patches. No state is kept here.
"use strict";

const RAMP = [ // inferno, which rises evenly in lightness and reads without colour vision
  [0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51], [249, 140, 10],
  [249, 201, 50], [252, 255, 164],
];
const GOOD = "#1f9bff", BAD = "#ff5c1c", UNKNOWN = "#a8a8a8";
const ENLARGED = 33; // pixels across a patch of the last card

const ramp = (share) => {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const below = Math.min(Math.floor(place), RAMP.length - 2), rest = place - below;
  return RAMP[below].map((value, i) => Math.round(value + rest * (RAMP[below + 1][i] - value)));
};
const RAMPED = Array.from({ length: 256 }, (_, level) => ramp(level / 255));
const TINTS = Uint32Array.from(RAMPED, ([red, green, blue], level) => // bytes R, G, B, A
  (Math.round(40 + 0.8 * level) << 24) | (blue << 16) | (green << 8) | red);

// Make a canvas as sharp as the screen; returns its context, in CSS pixels, and its width and height.
function fitted(canvas, aspect) {
  const width = canvas.clientWidth || 300, height = aspect ? width / aspect : canvas.clientHeight;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return { context, width, height };
}

// Take the colour out of a part of a canvas.
function grey(context, ...box) {
  context.globalCompositeOperation = "saturation";
  context.fillStyle = "#000";
  context.fillRect(...box);
  context.globalCompositeOperation = "source-over";
}

// Draw image 1 dimmed. Pixel p of it lies at (p + 0.5) * scale.
function dimmed(canvas, image) {
  const page = fitted(canvas, image.naturalWidth / image.naturalHeight);
  page.context.drawImage(image, 0, 0, page.width, page.height);
  grey(page.context, 0, 0, page.width, page.height);
  page.context.fillStyle = "rgba(0,0,0,0.5)";
  page.context.fillRect(0, 0, page.width, page.height);
  page.scale = page.width / image.naturalWidth;
  return page;
}

// Lay scores of a grid of places over it.
function heatOfGrid(page, map) {
  const levels = levelsOf(map), picture = new ImageData(map.columns, map.rows);
  const pixels = new Uint32Array(picture.data.buffer);
  for (let i = 0; i < levels.length; i += 1) pixels[i] = TINTS[levels[i]];
  const sheet = document.createElement("canvas");
  sheet.width = map.columns;
  sheet.height = map.rows;
  sheet.getContext("2d").putImageData(picture, 0, 0);
  page.context.drawImage(sheet, 0, 0, map.columns * map.step * page.scale, map.rows * map.step * page.scale);
}

// Lay scores of single places over it, the best on top: the better, the larger and the brighter.
function heatOfPoints(page, map, places) {
  const levels = levelsOf(map), order = [...levels.keys()].sort((a, b) => levels[a] - levels[b]);
  const room = Math.min(Math.sqrt((page.width * page.height) / levels.length), 24); // of one place
  for (const i of order) {
    const strength = (levels[i] / 255) ** 2, [red, green, blue] = RAMPED[levels[i]];
    page.context.fillStyle = `rgba(${red},${green},${blue},${0.25 + 0.75 * strength})`;
    page.context.beginPath();
    const [x, y] = at(page, [places[2 * i], places[2 * i + 1]]);
    page.context.arc(x, y, room * (0.14 + 0.5 * strength), 0, 7);
    page.context.fill();
  }
}

const at = (page, [x, y]) => [(x + 0.5) * page.scale, (y + 0.5) * page.scale];

function stroked(context, colour, trace) {
  for (const [style, width] of [["rgba(0,0,0,0.75)", 5], [colour, 2.2]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    trace();
    context.stroke();
  }
}

const ring = (context, [x, y], colour, radius = 9) =>
  stroked(context, colour, () => context.arc(x, y, radius, 0, 7));
const diamond = (context, [x, y], colour, radius = 8) =>
  stroked(context, colour, () => {
    context.moveTo(x, y - radius); context.lineTo(x + radius, y); context.lineTo(x, y + radius);
    context.lineTo(x - radius, y); context.closePath();
  });
const cross = (context, [x, y], colour, radius = 11) =>
  stroked(context, colour, () => {
    for (const [a, b] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + 3 * a, y + 3 * b); context.lineTo(x + radius * a, y + radius * b);
    }
  });

// Draw a card: heat, then where it peaks (ring) and where the point truly is (diamond).
function drawMap(canvas, image, map, places, truth) {
  const page = dimmed(canvas, image);
  if (places) heatOfPoints(page, map, places); else heatOfGrid(page, map);
  if (truth) diamond(page.context, at(page, truth), GOOD);
  ring(page.context, at(page, map.peak), "#ffffff");
}

// Draw the lines of all matches over both images; `ends` are in CSS pixels of the canvas.
function drawLines(canvas, matches, options) {
  const { context, width, height } = fitted(canvas);
  context.clearRect(0, 0, width, height);
  const count = Math.max(matches.length, 1), faint = options.chosen ? 0.6 : 1;
  context.lineWidth = Math.min(Math.max(4 / count ** 0.35, 0.5), 1.6);
  const radius = Math.min(Math.max((900 / count) ** 0.5, 1.2), 3);
  for (const { ends: [a, b], colour } of [...matches].reverse()) {
    context.strokeStyle = context.fillStyle = colour;
    context.globalAlpha = faint * Math.min(Math.max(7 / count ** 0.5, 0.12), 0.9);
    if (options.lines) { context.beginPath(); context.moveTo(...a); context.lineTo(...b); context.stroke(); }
    context.globalAlpha = 0.4 + 0.6 * faint;
    for (const end of [a, b]) { context.beginPath(); context.arc(...end, radius, 0, 7); context.fill(); }
  }
  context.globalAlpha = 1;
  if (options.chosen) {
    const { point, match, truth } = options.chosen;
    if (match) stroked(context, "#ffffff", () => { context.moveTo(...match[0]); context.lineTo(...match[1]); });
    if (truth) diamond(context, truth, GOOD);
    if (match) ring(context, match[1], "#ffffff");
    cross(context, point, "#ffffff");
  }
}

// Draw both places enlarged, side by side: the point, and where it was found and moved to.
function drawPatches(canvas, images, match, truth) {
  const { context, width, height } = fitted(canvas, 2.04), side = height, gap = width - 2 * side;
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  const centres = [match.point0, match.found1].map((point) => point.map(Math.round));
  context.imageSmoothingEnabled = false;
  centres.forEach(([x, y], i) => {
    const half = (ENLARGED - 1) / 2, left = i * (side + gap);
    context.save();
    context.beginPath(); context.rect(left, 0, side, side); context.clip();
    context.drawImage(images[i], x - half, y - half, ENLARGED, ENLARGED, left, 0, side, side);
    grey(context, left, 0, side, side);
    const place = (point) => [0, 1].map((axis) =>
      ((point[axis] - centres[i][axis] + half + 0.5) * side) / ENLARGED + (axis ? 0 : left));
    if (i === 1 && truth) diamond(context, place(truth), GOOD);
    if (i === 1) ring(context, place(match.found1), "#fdb42f", 7);
    cross(context, place(i ? match.point1 : match.point0), "#ffffff");
    context.restore();
  });
}

// The CSS transform that carries image 0, at `scale0` of its pixels, onto image 1 at `scale1`.
function warp(homography, scale0, scale1) {
  const product = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, v, k) => sum + v * b[k][j], 0)));
  const out = [[scale1, 0, 0.5 * scale1], [0, scale1, 0.5 * scale1], [0, 0, 1]]; // centres to corners
  const inward = [[1 / scale0, 0, -0.5], [0, 1 / scale0, -0.5], [0, 0, 1]];
  const rows = [0, 3, 6].map((i) => homography.slice(i, i + 3));
  const m = product(product(out, rows), inward).map((row, _, all) => row.map((v) => v / all[2][2]));
  const matrix = [m[0][0], m[1][0], 0, m[2][0], m[0][1], m[1][1], 0, m[2][1], 0, 0, 1, 0, m[0][2], m[1][2], 0, m[2][2]];
  return `matrix3d(${matrix.join(",")})`;
}
