"use strict";
(() => {
  const PRESETS = /*PRESETS*/;
  const COLOURS = ["#0b80b3", "#d9730d", "#2a9d5c", "#b5489c", "#8a6d00", "#6a5acd", "#c0392b", "#3a7d7c", "#777f8c"];
  const SVG = "http://www.w3.org/2000/svg";
  const el = (id) => document.getElementById(id);
  const OBJECTIVES = [
    { name: "entropy", title: "Entropy", about: "the paper's layer" },
    { name: "slack-free-entropy", title: "Slack-free entropy", about: "rows act only where they bind" },
    { name: "kl", title: "KL", about: "softmax and Sinkhorn, on any rows" },
    { name: "tsallis", title: "Tsallis 1.5", about: "entmax: sparse, without kinks" },
    { name: "euclidean", title: "Euclidean", about: "nearest point to scores / tau" },
  ];
  const PATIENCE = 300; // milliseconds until what the page says of the problem before is taken away
  const BROKEN = 1e-6;
  const state = { scores: {}, answer: null, busy: false, again: false, reach: 2, objective: "entropy" };

  // ---------------------------------------------------------------- small helpers

  const make = (tag, attributes = {}, text = null) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    return made;
  };
  const draw = (parent, tag, attributes, text = null) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  };
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e4) return value.toExponential(1);
    return String(Number(value.toPrecision(3)));
  };
  const fixed = (value) => (Math.abs(value) < 5e-5 ? "0.0000" : value.toFixed(4));
  const tau = () => Math.min(10, Math.max(0.001, 10 ** Number(el("tau").value)));
  const colour = (index) => (index < COLOURS.length ? COLOURS[index] : `hsl(${(index * 137.5) % 360} 55% 50%)`);
  const share = (value, low, high) => (high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5);

  // ---------------------------------------------------------------- asking

  async function solve() {
    if (state.busy) { state.again = true; return; }
    state.busy = true;
    document.body.dataset.busy = "yes";
    const waiting = setTimeout(showWaiting, PATIENCE);
    do {
      state.again = false;
      const question = { text: el("rows").value, scores: state.scores, tau: tau(), objective: state.objective };
      let answer;
      try {
        const reply = await fetch("/solve", {
          method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question),
        });
        answer = await reply.json();
      } catch {
        answer = { state: "error", message: "The server does not answer. Start `linsat explore` again." };
      }
      if (!state.again) show(answer);
    } while (state.again);
    clearTimeout(waiting);
    state.busy = false;
    document.body.dataset.busy = "no";
  }

  function showWaiting() {
    el("message").textContent = "";
    el("status").textContent = "solving";
    el("status").className = "pill";
  }

  function show(answer) {
    const solved = answer.state === "solved";
    const bad = new Set();
    if (answer.state === "infeasible") answer.conflict.forEach((index) => bad.add(answer.rows[index].line));
    if (answer.state === "error" && answer.line) bad.add(answer.line);
    showLines(bad);
    el("message").textContent = answer.message || (solved && answer.status !== "converged" ? answer.advice : "");
    showStatus(answer);
    for (const id of ["heat", "picture", "values", "duals"]) el(id).classList.toggle("stale", !answer.variables);
    for (const id of ["copy-python", "copy-json"]) el(id).disabled = !answer.variables;
    document.body.dataset.state = answer.state;
    state.answer = answer.variables ? answer : null;
    if (!answer.variables) { showNoProblem(); return; }
    showFacts(answer);
    showVariables(answer);
    showAnswers(answer);
    showRows(answer);
    showPictures(answer);
  }

  function showStatus(answer) {
    const good = answer.state === "solved" && answer.status === "converged";
    const broken = good ? answer.rows.filter((row) => row.price !== null && row.violation > BROKEN).length : 0;
    const words = {
      solved: broken ? `${broken} soft row${broken > 1 ? "s" : ""} broken` : "every row holds",
      empty: "write a row", infeasible: "infeasible", error: "cannot read this",
    };
    const text = answer.state === "solved" && !good ? answer.status : words[answer.state];
    const pill = el("status");
    if (pill.textContent !== text) pill.textContent = text;
    pill.className = "pill " + (broken ? "fair" : good ? "good" : answer.state === "empty" ? "" : "bad");
  }

  function showNoProblem() {
    // Pictures and numbers of the rows before stay, dimmed, so that typing does not flicker; what was said of them goes.
    el("caption").textContent = el("plots").children.length ? "Dimmed: the last rows that could be read." : "";
    document.querySelectorAll("#row-table .bad, #plots .bad").forEach((part) => part.classList.remove("bad"));
  }

  function showLines(bad) {
    const count = el("rows").value.split("\n").length;
    el("lines").replaceChildren(...Array.from({ length: count }, (_, i) =>
      make("div", bad.has(i + 1) ? { class: "bad" } : {}, String(i + 1))));
  }

  function showFacts(answer) {
    const solved = answer.state === "solved";
    const value = solved ? answer.x.reduce((sum, x, i) => sum + x * answer.scores[i], 0) : 0;
    const best = solved && answer.vertex ? answer.vertex.reduce((sum, x, i) => sum + x * answer.scores[i], 0) : null;
    el("violation").textContent = solved ? short(answer.violation) : "–";
    el("steps").textContent = solved ? String(answer.steps) : "–";
    el("value").textContent = solved ? short(value) : "–";
    el("best").textContent = !solved ? "–" : best === null ? "several" : short(best);
  }

  // ---------------------------------------------------------------- variables: a score to drag, and x

  function showVariables(answer) {
    const box = el("variables");
    const names = answer.variables.join(" ");
    if (box.dataset.names !== names) {
      box.dataset.names = names;
      const titles = make("div", { class: "variable titles" });
      for (const text of ["", "score", "", "x in its box", ""]) titles.append(make("span", {}, text));
      box.replaceChildren(titles, ...answer.variables.map(variableLine));
    }
    answer.variables.forEach((name, i) => {
      setScore(name, answer.scores[i]);
      const line = box.querySelector(`[data-variable="${name}"]`);
      const fill = line.querySelector(".fill"), tick = line.querySelector(".tick"), number = line.querySelector(".number");
      const solved = answer.state === "solved";
      fill.style.width = solved ? `${100 * share(answer.x[i], answer.lower[i], answer.upper[i])}%` : "0";
      tick.hidden = !(solved && answer.vertex);
      if (!tick.hidden) tick.style.left = `${100 * share(answer.vertex[i], answer.lower[i], answer.upper[i])}%`;
      number.textContent = solved ? fixed(answer.x[i]) : "–";
      line.querySelector(".x").title = `${name} in [${short(answer.lower[i])}, ${short(answer.upper[i])}]`;
    });
  }

  function variableLine(name, index) {
    const line = make("div", { class: "variable", "data-variable": name });
    const title = make("b", { title: name });
    const swatch = make("i");
    swatch.style.background = colour(index);
    title.append(swatch, name);
    const bar = make("input", { type: "range", step: "0.01", "data-score": name, "aria-label": `score of ${name}` });
    const number = make("input", { type: "number", step: "0.1", min: "-1000", max: "1000", "data-exact": name,
      "aria-label": `score of ${name}, exactly` });
    bar.addEventListener("input", () => change(name, Number(bar.value)));
    number.addEventListener("input", () => {
      if (number.value !== "" && Number.isFinite(Number(number.value))) change(name, Number(number.value));
    });
    const x = make("div", { class: "x" });
    x.append(make("div", { class: "fill" }), make("div", { class: "tick" }));
    line.append(title, bar, number, x, make("span", { class: "number", "data-x": name }, "–"));
    return line;
  }

  function change(name, value) {
    state.scores[name] = Math.min(1000, Math.max(-1000, value));
    el("exported").hidden = true;
    setScore(name, state.scores[name]);
    solve();
  }

  function setScore(name, value) {
    const bar = document.querySelector(`[data-score="${name}"]`), number = document.querySelector(`[data-exact="${name}"]`);
    if (!bar) return;
    const reach = Math.max(state.reach, Math.abs(value));
    bar.min = -reach; bar.max = reach;
    if (Number(bar.value) !== value) bar.value = value;
    if (document.activeElement !== number) number.value = Number(value.toFixed(3));
    const at = 50 + (50 * value) / reach;
    bar.style.setProperty("--from", `${Math.min(50, at)}%`);
    bar.style.setProperty("--to", `${Math.max(50, at)}%`);
  }

  function showAnswers(answer) {
    const table = el("answers");
    const head = make("tr");
    head.append(make("th", {}, "x under each objective"));
    for (const { name, title } of OBJECTIVES) {
      head.append(make("th", name === answer.objective ? { class: "chosen" } : {}, title));
    }
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...answer.variables.map((variable, i) => {
      const line = make("tr");
      line.append(make("td", {}, variable));
      for (const { name } of OBJECTIVES) {
        const x = answer.state === "solved" ? answer.answers[name].x : null;
        line.append(make("td", { "data-answer": `${name} ${variable}`, class: name === answer.objective ? "chosen" : "" },
          x === null ? "–" : fixed(x[i])));
      }
      return line;
    }));
  }

  // ---------------------------------------------------------------- rows

  function showRows(answer) {
    const body = el("row-table").tBodies[0];
    const conflict = new Set(answer.conflict || []);
    const largest = Math.max(1e-12, ...answer.rows.map((row) => Math.abs(row.dual || 0)));
    const focus = document.activeElement && document.activeElement.dataset.price;
    body.replaceChildren(...answer.rows.map((row, i) => {
      const broken = row.price !== null && row.violation > BROKEN;
      const line = make("tr", conflict.has(i) ? { class: "bad" } : broken ? { class: "broken" } : {});
      const name = make("td", {}, row.name);
      name.append(make("small", {}, row.text));
      const known = row.dual !== undefined;
      line.append(name, make("td", {}, known ? fixed(row.activity) : "–"),
        make("td", {}, { "<=": "≤", ">=": "≥", "==": "=" }[row.sense]), make("td", {}, short(row.rhs)),
        make("td", { "data-violation": row.name }, known ? short(row.violation) : "–"), priceCell(row),
        make("td", { "data-dual": row.name }, known ? short(row.dual) : "–"));
      const cell = make("td", { class: "bar" }), bar = make("div", { class: "dual" }), fill = make("span");
      if (known) {
        const width = (50 * Math.abs(row.dual)) / largest;
        fill.style.width = `${width}%`;
        fill.style.left = `${row.dual < 0 ? 50 - width : 50}%`;
      }
      bar.append(fill);
      cell.append(bar);
      line.append(cell);
      return line;
    }));
    if (focus) [...body.querySelectorAll("[data-price]")].find((field) => field.dataset.price === focus)?.focus();
  }

  function priceCell(row) {
    const cell = make("td");
    const field = make("input", { type: "number", min: "0", step: "any", placeholder: "hard", "data-price": row.name,
      "aria-label": `price of ${row.name}, empty for a row that must hold` });
    field.value = row.price === null ? "" : String(row.price);
    field.addEventListener("change", () => setPrice(row.line, field.value));
    cell.append(field);
    return cell;
  }

  function setPrice(number, price) {
    // The text is the problem: a price is written at the end of its line, before a comment.
    const lines = el("rows").value.split("\n");
    const [, code, comment] = /^([^#]*)(.*)$/.exec(lines[number - 1]);
    const start = code.indexOf(":") + 1;
    const row = code.slice(start).replace(/,[ \t]*price\b.*$/, "").trimEnd();
    lines[number - 1] = code.slice(0, start) + row + (price === "" ? "" : `, price ${price}`) + (comment && ` ${comment}`);
    el("rows").value = lines.join("\n");
    edited();
  }

  // ---------------------------------------------------------------- pictures

  function showPictures(answer) {
    const two = answer.variables.length === 2;
    const solved = answer.state === "solved";
    el("picture-title").textContent = two ? "Feasible set, and x against tau" : "x against tau";
    el("caption").textContent = !solved
      ? "No point satisfies all rows" + (two ? ": the red lines cannot be met together within the box." : ".")
      : (two ? "Filled: the points that satisfy every row that must hold. Dots: x under each objective, the chosen one large "
          + "with its way from hot to cold. Ring: the best vertex. Drag the end of the arrow to turn the scores. " : "")
        + "Every curve is one variable: smooth on the right, decided on the left. The dashed line is the present tau.";
    const parts = [];
    if (two) parts.push(drawPolygon(answer));
    if (solved) {
      const curves = make("div", { class: "curves" });
      curves.append(...OBJECTIVES.map((objective) => drawCurves(answer, objective)));
      parts.push(curves);
    }
    el("plots").replaceChildren(...parts);
  }

  function ticks(low, high) {
    const step = 10 ** Math.floor(Math.log10((high - low) || 1));
    const fine = [step / 5, step / 2, step, step * 2].find((s) => (high - low) / s <= 6) || step;
    const found = [];
    for (let t = Math.ceil(low / fine - 1e-9) * fine; t <= high + 1e-9; t += fine) found.push(Number(t.toPrecision(6)));
    return found;
  }

  function drawPolygon(answer) {
    const size = 440, pad = 42;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `feasible set of ${answer.variables.join(" and ")}`);
    const spans = [0, 1].map((i) => {
      const margin = 0.06 * ((answer.upper[i] - answer.lower[i]) || 1);
      return [answer.lower[i] - margin, answer.upper[i] + margin];
    });
    const px = (a) => pad + ((a - spans[0][0]) / (spans[0][1] - spans[0][0])) * (size - pad - 12);
    const py = (b) => size - pad - ((b - spans[1][0]) / (spans[1][1] - spans[1][0])) * (size - pad - 12);
    for (const t of ticks(answer.lower[0], answer.upper[0])) {
      draw(svg, "line", { class: "axis", x1: px(t), x2: px(t), y1: 12, y2: size - pad });
      draw(svg, "text", { x: px(t), y: size - pad + 16, "text-anchor": "middle" }, short(t));
    }
    for (const t of ticks(answer.lower[1], answer.upper[1])) {
      draw(svg, "line", { class: "axis", x1: pad, x2: size - 12, y1: py(t), y2: py(t) });
      draw(svg, "text", { x: pad - 6, y: py(t) + 4, "text-anchor": "end" }, short(t));
    }
    draw(svg, "text", { class: "strong", x: size - 14, y: size - 8, "text-anchor": "end" }, answer.variables[0]);
    draw(svg, "text", { class: "strong", x: 8, y: 20 }, answer.variables[1]);
    const conflict = new Set(answer.conflict || []);
    answer.rows.forEach((row, i) => drawRowLine(svg, row, conflict.has(i), spans, px, py));
    if (answer.state !== "solved") return svg;
    const corners = answer.polygon.map(([a, b]) => `${px(a)},${py(b)}`).join(" ");
    draw(svg, "polygon", { class: "shape", points: corners, "data-corners": answer.polygon.length });
    const way = answer.path.x.filter((x) => x !== null).map(([a, b]) => `${px(a)},${py(b)}`).join(" ");
    draw(svg, "polyline", { class: "path", points: way });
    if (answer.vertex) draw(svg, "circle", { class: "vertex", cx: px(answer.vertex[0]), cy: py(answer.vertex[1]), r: 9 });
    drawArrow(svg, answer, spans, px, py);
    for (const { name } of [...OBJECTIVES].sort((one) => (one.name === answer.objective ? 1 : -1))) {
      const x = answer.answers[name].x, chosen = name === answer.objective;
      if (x === null) continue;
      const dot = draw(svg, "circle", { class: `point ${name}`, cx: px(x[0]), cy: py(x[1]), r: chosen ? 8 : 5 });
      if (chosen) dot.id = "x-point";
      draw(dot, "title", {}, name);
    }
    return svg;
  }

  function drawRowLine(svg, row, bad, spans, px, py) {
    const [c0, c1] = row.coefficients;
    const ends = [];
    const [[l, r], [b, t]] = spans;
    if (c1 !== 0) for (const a of [l, r]) { const v = (row.rhs - c0 * a) / c1; if (v >= b && v <= t) ends.push([a, v]); }
    if (c0 !== 0) for (const v of [b, t]) { const a = (row.rhs - c1 * v) / c0; if (a >= l && a <= r) ends.push([a, v]); }
    if (ends.length < 2) return;
    const [first, last] = [ends[0], ends[ends.length - 1]];
    draw(svg, "line", { class: `row${bad ? " bad" : ""}${row.price === null ? "" : " soft"}`, x1: px(first[0]), y1: py(first[1]), x2: px(last[0]), y2: py(last[1]) });
    const top = first[1] > last[1] ? first : last;
    const inside = px(top[0]) > 300 ? "end" : "start";
    draw(svg, "text", { class: bad ? "bad" : "", x: px(top[0]) + (inside === "end" ? -6 : 6),
      y: Math.max(24, py(top[1]) + 14), "text-anchor": inside }, row.name);
  }

  function drawArrow(svg, answer, spans, px, py) {
    // The arrow begins in the middle of the corners; its length is that of the scores, up to the edge of the picture.
    const n = answer.polygon.length || 1;
    const from = [0, 1].map((i) => answer.polygon.reduce((sum, c) => sum + c[i], 0) / n);
    const unit = 0.32 * Math.min(spans[0][1] - spans[0][0], spans[1][1] - spans[1][0]);
    const length = Math.hypot(answer.scores[0], answer.scores[1]);
    const stretch = length > 1.3 ? (1.3 * unit) / length : unit;
    const tip = [from[0] + stretch * answer.scores[0], from[1] + stretch * answer.scores[1]];
    draw(svg, "line", { class: "arrow", x1: px(from[0]), y1: py(from[1]), x2: px(tip[0]), y2: py(tip[1]) });
    const handle = draw(svg, "circle", { class: "tip", cx: px(tip[0]), cy: py(tip[1]), r: 6 });
    draw(svg, "text", { class: "strong", x: px(tip[0]) + 9, y: py(tip[1]) - 6 }, "scores");
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      // The picture is redrawn with every answer, so the page follows the pointer, not the handle.
      const frame = svg.getBoundingClientRect(), scale = 440 / frame.width;
      const value = (e) => [(e.clientX - frame.left) * scale, (e.clientY - frame.top) * scale];
      const follow = (e) => {
        const [x, y] = value(e);
        const per = [px(1) - px(0), py(1) - py(0)];
        answer.variables.forEach((name, i) => {
          const moved = i === 0 ? (x - px(from[0])) / per[0] : (y - py(from[1])) / per[1];
          state.scores[name] = Math.round((100 * moved) / unit) / 100;
        });
        solve();
      };
      const stop = () => { removeEventListener("pointermove", follow); removeEventListener("pointerup", stop); };
      addEventListener("pointermove", follow);
      addEventListener("pointerup", stop);
    });
  }

  function drawCurves(answer, objective) {
    const width = 250, height = 230, left = 34, right = 10, bottom = 34;
    const figure = make("figure", { class: objective.name === answer.objective ? "chosen" : "", "data-curves": objective.name });
    const title = make("figcaption");
    title.append(make("i", { class: objective.name }), make("b", {}, objective.title));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `x of every variable against the temperature: ${objective.title}`);
    figure.append(title, svg);
    const low = Math.min(...answer.lower), high = Math.max(...answer.upper);
    const px = (t) => left + ((Math.log10(t) + 3) / 4) * (width - left - right);
    const py = (v) => height - bottom - share(v, low, high) * (height - bottom - 12);
    for (const t of [0.001, 0.01, 0.1, 1, 10]) {
      draw(svg, "line", { class: "axis", x1: px(t), x2: px(t), y1: 10, y2: height - bottom });
      const anchor = t === 10 ? "end" : "middle";
      draw(svg, "text", { x: t === 10 ? width - 1 : px(t), y: height - bottom + 15, "text-anchor": anchor }, String(t));
    }
    for (const t of ticks(low, high)) {
      draw(svg, "line", { class: "axis", x1: left, x2: width - right, y1: py(t), y2: py(t) });
      draw(svg, "text", { x: left - 5, y: py(t) + 4, "text-anchor": "end" }, short(t));
    }
    draw(svg, "text", { class: "strong", x: width / 2, y: height - 4, "text-anchor": "middle" }, "tau");
    draw(svg, "line", { class: "now", x1: px(tau()), x2: px(tau()), y1: 10, y2: height - bottom });
    const { path, x: now } = answer.answers[objective.name];
    answer.variables.forEach((name, i) => {
      const points = path.tau.map((t, k) => [t, path.x[k]]).filter(([, x]) => x !== null);
      const curve = draw(svg, "polyline", { class: "curve", points: points.map(([t, x]) => `${px(t)},${py(x[i])}`).join(" ") });
      curve.style.stroke = colour(i);
      draw(curve, "title", {}, name);
      if (now === null) return;
      const dot = draw(svg, "circle", { cx: px(tau()), cy: py(now[i]), r: 4 });
      dot.style.fill = colour(i);
    });
    return figure;
  }

  // ---------------------------------------------------------------- the start

  function load(preset) {
    el("rows").value = preset.text;
    el("tau").value = Math.log10(preset.tau);
    state.scores = { ...preset.scores };
    el("variables").dataset.names = "";
    choose(preset.objective);
    edited();
    el("about").textContent = preset.about;
  }

  // The rows are others now: what was said of those before goes.
  function edited() {
    el("about").textContent = "";
    el("exported").hidden = true;
    showTau();
    showLines(new Set());
    solve();
  }

  function choose(name) {
    state.objective = name;
    for (const field of document.querySelectorAll("[name=objective]")) field.checked = field.value === name;
  }

  function objectiveChoice({ name, title, about }) {
    const label = make("label", { class: "choice" });
    const field = make("input", { type: "radio", name: "objective", value: name });
    field.addEventListener("change", () => { choose(name); el("exported").hidden = true; solve(); });
    const words = make("span");
    words.append(make("i", { class: name }), make("b", {}, title), make("small", {}, about));
    label.append(field, words);
    return label;
  }

  function showTau() { el("tau-value").textContent = `tau = ${short(tau())}`; }

  async function copy(what) {
    if (!state.answer) return;
    const text = state.answer[what];
    el("exported").textContent = text;
    el("exported").hidden = false;
    try {
      await navigator.clipboard.writeText(text);
      el("copied").textContent = "copied";
    } catch {
      el("copied").textContent = "select and copy it below";
    }
    setTimeout(() => { el("copied").textContent = ""; }, 2500);
  }

  PRESETS.forEach((preset, i) => el("preset").append(make("option", { value: String(i) }, preset.name)));
  el("preset").addEventListener("change", () => load(PRESETS[Number(el("preset").value)]));
  el("rows").addEventListener("input", edited);
  el("rows").addEventListener("scroll", () => {
    el("lines").style.transform = `translateY(${-el("rows").scrollTop}px)`;
  });
  el("tau").addEventListener("input", () => { el("exported").hidden = true; showTau(); solve(); });
  el("objectives").append(...OBJECTIVES.map(objectiveChoice));
  el("copy-python").addEventListener("click", () => copy("python"));
  el("copy-json").addEventListener("click", () => copy("json"));
  load(PRESETS[0]);
})();
