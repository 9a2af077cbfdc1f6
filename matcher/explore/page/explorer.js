// What the page does: it opens the pair, lets a point be chosen, and shows how each stage answers.
"use strict";

const $ = (selector) => document.querySelector(selector);
const frames = [$("#frame0"), $("#frame1")];
const images = frames.map((frame) => frame.querySelector("img"));
const STAGES = ["pixels", "before", "attention", "after", "assignment", "match"];

let pair, matches, point = null, answer = null, pixels = null, asking = null;

const trouble = (error) => {
  if (error?.name === "AbortError") return;
  $("#trouble").hidden = !error;
  $("#trouble").textContent = error ? error.message : "";
};

// Coordinates are told in pixels of the image given; the page computes in those of the image it shows.
const given = (side, [x, y]) => {
  const { width, height, givenWidth, givenHeight } = pair.images[side];
  return [((x + 0.5) * givenWidth) / width - 0.5, ((y + 0.5) * givenHeight) / height - 0.5];
};
const words = (side, place, digits = 0) => given(side, place).map((v) => (v + 0).toFixed(digits)).join(", ");
const gap = (a, b) => Math.hypot(...given(1, a).map((v, axis) => v - given(1, b)[axis]));
const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

async function open(shown) {
  pair = shown;
  answer = pixels = point = null;
  $("#version").textContent = `tiepoint ${pair.version}`;
  $("#method").replaceChildren(...pair.methods.map((name) => new Option(name)));
  $("#colours").value = pair.truth ? "truth" : "inliers";
  $("#colours option[value=truth]").disabled = !pair.truth;
  pair.images.forEach(({ name, width, height, givenWidth, givenHeight }, side) => {
    const shrunk = width === givenWidth ? "" : `, shown at ${width} × ${height}`;
    images[side].src = source.picture(side);
    images[side].width = width;
    images[side].height = height;
    frames[side].parentElement.querySelector("figcaption").textContent =
      `Image ${side} · ${name} · ${givenWidth} × ${givenHeight}${shrunk}`;
  });
  const shownAs = document.querySelectorAll("#overlay img");
  shownAs[0].src = source.picture(1);
  shownAs[1].src = source.picture(0);
  $("#x").max = pair.images[0].givenWidth - 1;
  $("#y").max = pair.images[0].givenHeight - 1;
  await Promise.all(images.map((image) => image.decode()));
  await choose_method(pair.methods.includes(open.method) ? open.method : pair.methods[0]);
}

async function choose_method(name) {
  $("#method").value = open.method = name;
  $("#summary").textContent = `${name} is matching …`;
  matches = null;
  answer = null;
  drawPair();
  try {
    matches = decoded(await source.matches(name));
    trouble(null);
    tellMatches();
  } catch (error) {
    $("#summary").textContent = `${name} did not match`;
    trouble(error);
  }
  drawPair();
  drawOverlay();
  fillTable();
  const middle = [pair.images[0].width / 2, pair.images[0].height / 2];
  await choose(point ?? matches?.points0[0] ?? middle);
}

function tellMatches() {
  const [describing, matching, refining] = matches.milliseconds;
  const share = matches.model ? `, ${matches.inliers.filter(Boolean).length} agree with one ${matches.model}` : "";
  $("#summary").textContent = `${count(matches.scores.length, "match", "matches")}${share}; ` +
    `${describing.toFixed(0)} ms describing, ${matching.toFixed(0)} matching, ${refining.toFixed(0)} refining` +
    (matches.untrained ? "; untrained, so they mean nothing" : "");
  $("#assigned-by").textContent = matches.assignment;
  $("#layer").max = matches.layers;
  $("#layer").value = 0;
  const heads = Array.from({ length: matches.heads }, (_, i) => new Option(`${i + 1}`, i + 1));
  $("#head").replaceChildren(new Option("mean", 0), ...(heads.length > 1 ? heads : []));
}

function decoded(told) {
  const pairs = (packed) => {
    const numbers = unpacked(packed);
    return Array.from({ length: numbers.length / 2 }, (_, i) => [numbers[2 * i], numbers[2 * i + 1]]);
  };
  return {
    ...told, places: unpacked(told.tokens1), points0: pairs(told.points0), points1: pairs(told.points1),
    found1: pairs(told.found1), scores: unpacked(told.scores),
  };
}

// Ask about a point of image 0 and show the answers as they come; a newer point cancels an older one.
async function choose(wanted) {
  const { width, height } = pair.images[0];
  point = source.nearest([
    Math.min(Math.max(Math.round(wanted[0]), 0), width - 1),
    Math.min(Math.max(Math.round(wanted[1]), 0), height - 1),
  ]);
  [$("#x").value, $("#y").value] = given(0, point).map(Math.round);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  answer = pixels = null;
  drawPair();
  for (const name of STAGES) $(`#${name}`).classList.add("waiting");
  try {
    const both = [source.pixels(point, signal), matches ? source.answer(open.method, point, signal) : null];
    const [ncc, rest] = await Promise.all(both);
    if (signal.aborted) return;
    [pixels, answer] = [ncc, rest];
    drawPair();
    drawStages();
    say();
    document.body.dataset.point = point.join(",");
  } catch (error) {
    trouble(error);
  }
}

const chosenMatch = () => {
  const row = answer?.match ?? -1;
  if (row < 0) return null;
  return {
    row, score: matches.scores[row], point0: matches.points0[row], point1: matches.points1[row],
    found1: matches.found1[row], inlier: matches.inliers[row], error: matches.errors?.[row] ?? null,
  };
};

// --- the pair -----------------------------------------------------------------------------------

const isGood = (row) => {
  if ($("#colours").value !== "truth") return matches.inliers[row] === 1;
  return matches.errors[row] === null ? null : matches.errors[row] <= 3;
};
const colourOf = (row, low, high) => {
  if ($("#colours").value === "score") {
    const share = (matches.scores[row] - low) / Math.max(high - low, 1e-6);
    return `rgb(${RAMPED[Math.round(90 + 150 * share)].join(",")})`;
  }
  return { true: GOOD, false: BAD, null: UNKNOWN }[isGood(row)];
};

function drawPair() {
  const canvas = $("#lines"), corner = canvas.getBoundingClientRect();
  const place = (side, [x, y]) => {
    const box = frames[side].getBoundingClientRect(), scale = box.width / pair.images[side].width;
    return [box.left - corner.left + (x + 0.5) * scale, box.top - corner.top + (y + 0.5) * scale];
  };
  const told = matches ? [...matches.scores.keys()].filter(isShown) : [];
  const scores = told.map((row) => matches.scores[row]);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const drawn = told.map((row) => ({
    ends: [place(0, matches.points0[row]), place(1, matches.points1[row])], colour: colourOf(row, low, high),
  }));
  const match = chosenMatch();
  const chosen = point && {
    point: place(0, point), truth: answer?.true && place(1, answer.true),
    match: match && [place(0, match.point0), place(1, match.point1)],
  };
  drawLines(canvas, drawn, { lines: $("#draw").checked, chosen });
  $("#count").textContent = matches ? `${told.length} of ${count(matches.scores.length, "match", "matches")} shown` : "";
  drawLegend();
}

function isShown(row) {
  if (matches.scores[row] < Number($("#least").value)) return false;
  return isGood(row) === false ? $("#bad").checked : $("#good").checked;
}

function drawLegend() {
  const how = $("#colours").value;
  const [good, bad] = how === "truth" ? ["right, within 3 px", "wrong"] : ["inliers", "outliers"];
  $("#good + span").textContent = good;
  $("#bad + span").textContent = bad;
  const entries = how === "score"
    ? [[`rgb(${RAMPED[90]})`, "least confident"], [`rgb(${RAMPED[240]})`, "most confident"]]
    : [[GOOD, good], [BAD, bad], ...(how === "truth" ? [[UNKNOWN, "unknown"]] : [])];
  $("#legend").replaceChildren(...entries.flatMap(([colour, text]) => {
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.style.background = colour;
    return [dot, text];
  }), " · cross: the point; ring: its match" + (pair?.truth ? "; blue diamond: its true place" : ""));
}

// --- the stages ---------------------------------------------------------------------------------

function drawStages() {
  const layer = Number($("#layer").value), head = Number($("#head").value);
  const none = "This method has no such stage.";
  const layers = matches?.layers ?? 0;
  $("#layer-told").textContent = layer ? `${layer} of ${layers}` : `all ${layers}`;
  $("#layer").disabled = !layers;
  $("#head").disabled = !layer || matches.heads < 2;
  const looked = !answer ? null
    : !layer ? answer.overall : head ? answer.attention[layer - 1][head - 1] : answer.mean[layer - 1];
  showMap("pixels", pixels, null, pixels.true, (map) => `NCC ${map.high.toFixed(2)}`);
  showMap("before", answer?.before, none, answer?.true, (map) => `cosine ${map.high.toFixed(2)}`);
  showMap("attention", looked, none, answer?.true, (map) => `weight ${share(map.high)}`);
  showMap("after", answer?.after, none, answer?.true, (map) => `similarity ${map.high.toFixed(1)}`);
  showMap("assignment", answer?.assignment, none, answer?.true, (map) =>
    `probability ${share(map.high)}` + (answer.dustbin === null ? "" : `, none ${share(answer.dustbin)}`));
  showMatch();
}

const share = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

function showMap(name, map, none, truth, measure) {
  const card = $(`#${name}`);
  card.classList.remove("waiting");
  card.classList.toggle("none", !map);
  const line = card.querySelector(".told");
  if (!map) return void (line.textContent = none);
  const canvas = card.querySelector("canvas");
  drawMap(canvas, images[1], map, name === "pixels" ? null : matches.places, truth);
  line.textContent = `Peak at ${words(1, map.peak)}: ${measure(map)}` +
    (truth ? `; ${gap(map.peak, truth).toFixed(1)} px from the true place` : "");
  canvas.setAttribute("aria-label", `${card.querySelector("h3").textContent}: ${line.textContent}`);
  [card.dataset.x, card.dataset.y] = map.peak;
}

function showMatch() {
  const card = $("#match"), line = card.querySelector(".told"), match = chosenMatch();
  card.classList.remove("waiting");
  card.classList.toggle("none", !match);
  if (!match) return void (line.textContent = "No match here: the token has no partner, or one that prefers another.");
  drawPatches(card.querySelector("canvas"), images, match, answer.true);
  const moved = gap(match.found1, match.point1);
  const error = match.error === null ? "" : `; ${match.error.toFixed(2)} px from the truth`;
  line.textContent = `${words(0, match.point0, 1)} → ${words(1, match.point1, 2)}, confidence ${match.score.toFixed(2)}; ` +
    (moved > 0.005 ? `refined by ${moved.toFixed(2)} px (ring to cross)` : "not moved by refinement") + error;
  card.querySelector("canvas").setAttribute("aria-label", `The match: ${line.textContent}`);
  [card.dataset.x, card.dataset.y] = match.point1;
}

function say() {
  const match = chosenMatch();
  const token = answer?.token && Math.hypot(answer.token[0] - point[0], answer.token[1] - point[1]) > 1.5
    ? ` The nearest token, at ${words(0, answer.token)}, answers for it.` : "";
  const end = match ? `matched to ${words(1, match.point1, 1)}, confidence ${match.score.toFixed(2)}` : "no match";
  $("#said").textContent = `Point ${words(0, point)}: ${end}.${token}`;
}

// --- overlay and table --------------------------------------------------------------------------

function drawOverlay() {
  const [under, over] = document.querySelectorAll("#overlay img"), how = $("#overlay-how").value;
  const usable = Boolean(matches?.homography);
  $("#overlay").className = `frame ${how}`;
  $("#overlay").hidden = $("#overlay-choices").hidden = !usable;
  $("#overlay-told").textContent = usable
    ? "Image 0, warped by the homography of the matches, over image 1. A scene that is not flat fits in part."
    : "The matches give no homography.";
  if (!usable) return;
  over.style.width = `${pair.images[0].width}px`;
  over.style.transform = warp(matches.homography, 1, under.clientWidth / pair.images[1].width);
  $("#wipe").disabled = how !== "wipe";
  $("#curtain").style.clipPath = how === "wipe" ? `inset(0 ${100 - $("#wipe").value}% 0 0)` : "none";
}

function fillTable() {
  const rows = [...(matches?.scores.keys() ?? [])].slice(0, 50).map((row) => {
    const line = document.createElement("tr"), button = document.createElement("button");
    button.type = "button";
    button.textContent = `Show ${row + 1}`;
    button.addEventListener("click", () => choose(matches.points0[row]));
    const error = matches.errors === null ? "–" : (matches.errors[row]?.toFixed(2) ?? "unknown");
    const cells = [button, words(0, matches.points0[row], 1), words(1, matches.points1[row], 2),
      matches.scores[row].toFixed(3), matches.inliers[row] ? "yes" : "no", error];
    line.append(...cells.map((content) => {
      const cell = document.createElement("td");
      cell.append(content);
      return cell;
    }));
    return line;
  });
  $("#list tbody").replaceChildren(...rows);
}

// --- what a person does -------------------------------------------------------------------------

frames[0].addEventListener("click", (event) => {
  const box = frames[0].getBoundingClientRect(), scale = box.width / pair.images[0].width;
  choose([(event.clientX - box.left) / scale - 0.5, (event.clientY - box.top) / scale - 0.5]);
});

function step(by) {
  const rows = [...(matches?.scores.keys() ?? [])].filter(isShown);
  if (!rows.length) return;
  const here = rows.indexOf(answer?.match ?? -1);
  choose(matches.points0[rows[(here + by + rows.length) % rows.length]]);
}

frames[0].addEventListener("keydown", (event) => {
  const by = event.shiftKey ? 10 : 1;
  const way = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, -by], ArrowDown: [0, by] }[event.key];
  if (way && point) choose([point[0] + way[0], point[1] + way[1]]);
  else if (event.key.toLowerCase() === "n") step(1);
  else if (event.key.toLowerCase() === "p") step(-1);
  else return;
  event.preventDefault();
});

const typed = () => {
  const { width, height, givenWidth, givenHeight } = pair.images[0];
  choose([((Number($("#x").value) + 0.5) * width) / givenWidth - 0.5,
    ((Number($("#y").value) + 0.5) * height) / givenHeight - 0.5]);
};
$("#x").addEventListener("change", typed);
$("#y").addEventListener("change", typed);
$("#next").addEventListener("click", () => step(1));
$("#previous").addEventListener("click", () => step(-1));
$("#method").addEventListener("change", (event) => choose_method(event.target.value));
$("#layer").addEventListener("input", () => pixels && drawStages());
$("#head").addEventListener("change", () => pixels && drawStages());
$("#least").addEventListener("input", (event) => {
  $("#least-told").textContent = Number(event.target.value).toFixed(2);
  drawPair();
});
for (const name of ["colours", "good", "bad", "draw"]) $(`#${name}`).addEventListener("change", drawPair);
for (const name of ["overlay-how", "wipe"]) $(`#${name}`).addEventListener("input", drawOverlay);
for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());

async function exchange(side, file) {
  try {
    $("#summary").textContent = `opening ${file.name} …`;
    await open(await source.exchange(side, file));
  } catch (error) {
    trouble(error);
  }
}

for (const input of document.querySelectorAll("input[type=file]")) {
  input.addEventListener("change", () => input.files.length && exchange(Number(input.dataset.side), input.files[0]));
}
frames.forEach((frame, side) => {
  frame.addEventListener("dragover", (event) => { event.preventDefault(); frame.classList.add("over"); });
  frame.addEventListener("dragleave", () => frame.classList.remove("over"));
  frame.addEventListener("drop", (event) => {
    event.preventDefault();
    frame.classList.remove("over");
    if (source.live && event.dataTransfer.files.length) exchange(side, event.dataTransfer.files[0]);
  });
});
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());

$("#export").addEventListener("click", async () => {
  const button = $("#export");
  button.disabled = true;
  button.textContent = "Recording …";
  try {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await source.save());
    link.download = "explorer.html";
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    trouble(error);
  }
  button.disabled = false;
  button.textContent = "Save as one page";
});

new ResizeObserver(() => {
  if (!pair) return;
  drawPair();
  drawOverlay();
  if (pixels) drawStages();
}).observe($("#pair"));

document.body.className = source.live ? "live" : "still";
source.pair().then(open).catch(trouble);
