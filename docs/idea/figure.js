/* The figure of idea.md: weights that are random paths over depth, and the functions that they make.

   The net has UNITS hidden units. Unit j responds to inputs near centre c_j, with strength φ_j(x). For t from 0 to 1,

       dh(x) = Σ_j w_j(t) φ_j(x) dt,    h_0 = 0,   f(x) = h_1(x),       Σ_j φ_j(x)² = 1
       dw_j = -RATE w_j dt + σ dB_j,    w_j(0) = 0

   and h is solved in n steps, the layers, by the midpoint rule. The output is linear in the weights, so that their
   posterior given observations y_i = f(x_i) + noise is a Gaussian process, and nothing is trained or approximated. With

       c(t) = cov(w_j(t), ∫w_j),   v = var(∫w_j),   k(x, x') = v Σ_j φ_j(x) φ_j(x'),   A = k(X, X) + NOISE² I,

   a draw (w, f) of the prior becomes one of the posterior if every path is bent, by Matheron's rule:

       w_j(t)  ←  w_j(t) + c(t) Σ_i φ_j(x_i) a_i,        a = A⁻¹ (y - f(X) - NOISE ε).

   The functions of `model` are pure, and tests/test_idea.py checks them in Node. The rest draws SVG. */
(function () {
  "use strict";

  const RATE = 1, NOISE = 0.1, FINE = 64; // steps in which paths are drawn, whatever the number of layers
  const UNITS = 21, SPACING = 0.5, WIDTH = 0.7;
  const CENTRES = Array.from({ length: UNITS }, (_, j) => SPACING * (j - (UNITS - 1) / 2));

  // ---------------------------------------------------------------- the model

  /* Uniform numbers in (0, 1), the same for the same whole numbers (mulberry32, seeded by a hash of them). */
  function uniforms(...seeds) {
    let state = 0x9e3779b9;
    for (const seed of seeds) {
      state = Math.imul(state ^ (seed + 0x7f4a7c15), 0x85ebca6b);
      state = Math.imul(state ^ (state >>> 13), 0xc2b2ae35);
      state ^= state >>> 16;
    }
    return () => {
      state = (state + 0x6d2b79f5) | 0;
      let z = Math.imul(state ^ (state >>> 15), 1 | state);
      z = (z + Math.imul(z ^ (z >>> 7), 61 | z)) ^ z;
      return ((z ^ (z >>> 14)) >>> 0) / 4294967296 + 2 ** -33;
    };
  }

  /* Standard normal numbers, by the method of Box and Muller. */
  function normals(...seeds) {
    const uniform = uniforms(...seeds);
    return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  /* One draw of all weights from the prior, exact at the depths 0, 1 / FINE, ..., 1: a path for each unit. */
  function priorPaths(sigma, seed, draw) {
    const normal = normals(seed, draw, 0);
    const keep = Math.exp(-RATE / FINE), shake = sigma * Math.sqrt((1 - keep * keep) / (2 * RATE));
    return CENTRES.map(() => {
      const path = [0];
      while (path.length <= FINE) path.push(keep * path.at(-1) + shake * normal());
      return path;
    });
  }

  /* φ(x), scaled to length 1, so that the prior is the same at every x. */
  function features(x) {
    const phi = CENTRES.map((centre) => Math.exp(-0.5 * ((x - centre) / WIDTH) ** 2));
    const length = Math.hypot(...phi);
    return phi.map((value) => value / length);
  }

  /* The places in a path of the weights of n layers: in the middle of the step of each. */
  const middles = (n) => Array.from({ length: n }, (_, k) => ((2 * k + 1) * FINE) / (2 * n));

  /* f(x): the hidden state after all layers. Each adds w·φ(x) / n. */
  function output(paths, phi, n) {
    let h = 0;
    for (const m of middles(n)) {
      for (let j = 0; j < UNITS; j++) h += (paths[j][m] * phi[j]) / n;
    }
    return h;
  }

  /* cov(w(t), w(u)) of one weight under the prior. */
  const covariance = (sigma, t, u) =>
    (sigma ** 2 / (2 * RATE)) * (Math.exp(-RATE * Math.abs(t - u)) - Math.exp(-RATE * (t + u)));

  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

  /* The lower triangle L with L L' = A. */
  function cholesky(A) {
    const L = A.map((row) => row.map(() => 0));
    for (let i = 0; i < A.length; i++) {
      for (let j = 0; j <= i; j++) {
        const rest = A[i][j] - dot(L[i].slice(0, j), L[j].slice(0, j));
        L[i][j] = i === j ? Math.sqrt(rest) : rest / L[j][j];
      }
    }
    return L;
  }

  /* L⁻¹ b, and L'⁻¹ b. */
  function forward(L, b) {
    const out = [];
    for (let i = 0; i < b.length; i++) out.push((b[i] - dot(out, L[i])) / L[i][i]);
    return out;
  }
  function backward(L, b) {
    const out = b.slice();
    for (let i = b.length - 1; i >= 0; i--) {
      for (let j = i + 1; j < b.length; j++) out[i] -= L[j][i] * out[j];
      out[i] /= L[i][i];
    }
    return out;
  }

  /* The law of weights and functions given points [[x, y], ...]; without points it is the prior. */
  function law(sigma, n, points) {
    const depths = Array.from({ length: FINE + 1 }, (_, m) => m / FINE), layers = middles(n);
    const c = depths.map((t) => layers.reduce((sum, m) => sum + covariance(sigma, t, depths[m]) / n, 0));
    const v = layers.reduce((sum, m) => sum + c[m] / n, 0);
    const phis = points.map(([x]) => features(x)), y = points.map((point) => point[1]);
    const A = phis.map((a, i) => phis.map((b, j) => v * dot(a, b) + (i === j ? NOISE ** 2 : 0)));
    const L = cholesky(A), solve = (b) => backward(L, forward(L, b)), pull = solve(y);
    /* Mean and standard deviation of what has this variance, and this covariance with the points. */
    const moments = (k, before) => {
      const half = forward(L, k);
      return { mean: dot(k, pull), std: Math.sqrt(Math.max(0, before - dot(half, half))) };
    };
    return {
      /* Mean and standard deviation of f at x. */
      function(x) {
        const here = features(x), k = phis.map((phi) => v * dot(phi, here));
        return moments(k, v);
      },
      /* Mean and standard deviation of the weight of unit j at depth m / FINE. */
      weight(j, m) {
        return moments(phis.map((phi) => c[m] * phi[j]), covariance(sigma, depths[m], depths[m]));
      },
      /* One network: the prior's draw, every path bent so that the function passes the points. */
      draw(seed, number) {
        const paths = priorPaths(sigma, seed, number), normal = normals(seed, number, 1);
        const a = solve(y.map((value, i) => value - output(paths, phis[i], n) - NOISE * normal()));
        return paths.map((path, j) => {
          const bend = dot(a, phis.map((phi) => phi[j]));
          return path.map((w, m) => w + c[m] * bend);
        });
      },
      /* KL(posterior ‖ prior) in nats: the mean of log p(y | f) under the posterior, minus log p(y). */
      kl() {
        const inverse = points.map((_, i) => solve(points.map((_, j) => (i === j ? 1 : 0))));
        const trace = inverse.reduce((sum, row, i) => sum + row[i], 0);
        const logDeterminant = L.reduce((sum, row, i) => sum + 2 * Math.log(row[i]), 0);
        const moved = dot(y, pull) - NOISE ** 2 * dot(pull, pull);
        return 0.5 * (moved + NOISE ** 2 * trace - y.length + logDeterminant - y.length * Math.log(NOISE ** 2));
      },
    };
  }

  /* Standard deviations at the points, in the middle of the widest gap between them, and at the edge farther off. */
  function spreads(found, points, edge) {
    const xs = points.map((point) => point[0]).sort((a, b) => a - b);
    const std = (x) => found.function(x).std;
    let gap = null;
    for (let i = 1; i < xs.length; i++) {
      if (!gap || xs[i] - xs[i - 1] > gap.width) gap = { width: xs[i] - xs[i - 1], x: (xs[i] + xs[i - 1]) / 2 };
    }
    return {
      points: xs.length ? xs.reduce((sum, x) => sum + std(x), 0) / xs.length : null,
      gap: gap && std(gap.x),
      beyond: Math.max(std(-edge), std(edge)),
    };
  }

  const START = [[-2.6, 1.1], [-2.2, 1.6], [-1.8, 1.2], [-1.4, 0.4], [1.3, -0.9], [1.7, -1.5], [2.1, -1.2]];
  const model = { RATE, NOISE, FINE, CENTRES, START, normals, priorPaths, features, output, law, spreads };
  if (typeof module !== "undefined") module.exports = model;

  // ---------------------------------------------------------------- the figure

  const EDGE = 4, TOP = 4.5, WEIGHT_TOP = 6, GRID = 161;
  const COLOURS = ["#e07a5f", "#3d9970", "#9a72cc", "#d9a21b", "#c2417c", "#2b8cbe", "#7f8c3a"];
  const MOST_POINTS = 30;

  const CONTROLS = `
    <fieldset><legend>Law of the weights</legend>
      <label><input type="radio" name="idea-law" value="prior"> prior</label>
      <label><input type="radio" name="idea-law" value="posterior" checked> posterior, given the dots</label>
    </fieldset>
    <label>Noise of the weights, σ: <output data-of="sigma"></output>
      <input type="range" name="sigma" min="0.5" max="5" step="0.1" value="3"></label>
    <label>Layers, the steps over depth: <output data-of="layers"></output>
      <input type="range" name="layers" min="0" max="5" step="1" value="5"></label>
    <label>Networks drawn: <output data-of="draws"></output>
      <input type="range" name="draws" min="1" max="30" step="1" value="5"></label>
    <label>Weight shown, of the unit at x = <output data-of="unit"></output>
      <input type="range" name="unit" min="2" max="18" step="1" value="6"></label>
    <div class="idea-buttons">
      <button type="button" class="md-button" data-do="again">Another draw</button>
      <button type="button" class="md-button" data-do="remove">Remove the dots</button>
      <button type="button" class="md-button" data-do="reset">Start again</button>
    </div>
    <form class="idea-add"><span>A click on the functions adds a dot, and so does this:</span>
      <label>x <input type="number" name="x" min="-4" max="4" step="any" value="0" required></label>
      <label>y <input type="number" name="y" min="-4.5" max="4.5" step="any" value="1" required></label>
      <button type="submit" class="md-button">Add a dot</button>
    </form>`;

  const number = (value) => String(value).replace("-", "−");

  /* A frame with axes, and functions from numbers to pixels. */
  function frame({ width, height }, [left, right], top, xLabel, yLabel, xTicks, yTicks) {
    const box = { left: 40, right: width - 8, top: 8, bottom: height - 38 };
    const X = (x) => box.left + ((x - left) / (right - left)) * (box.right - box.left);
    const Y = (y) => box.top + ((top - y) / (2 * top)) * (box.bottom - box.top);
    const text = (x, y, anchor, words) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${words}</text>`;
    const ticks = [
      ...xTicks.map((x) => text(X(x), box.bottom + 16, "middle", number(x))),
      ...yTicks.map((y) => text(box.left - 6, Y(y) + 4, "end", number(y))),
      text((box.left + box.right) / 2, height - 5, "middle", xLabel),
      `<text transform="translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)" text-anchor="middle">${yLabel}</text>`,
      `<path class="idea-zero" d="M${X(left)} ${Y(0)}H${X(right)}"/>`,
      `<path class="idea-axis" d="M${box.left} ${box.top}V${box.bottom}H${box.right}"/>`,
    ].join("");
    const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(ys[i]).toFixed(1)}`).join("");
    const band = (xs, laws, kind) => {
      const edge = (sign) => laws.map(({ mean, std }) => mean + sign * 1.96 * std);
      const under = path([...xs].reverse(), edge(-1).reverse()).replace("M", "L");
      return `<path class="${kind}" d="${path(xs, edge(1))}${under}Z"/>`;
    };
    const line = (xs, ys, number) => {
      const style = `stroke:${COLOURS[number % COLOURS.length]};stroke-width:${number ? 1.3 : 2.4}`;
      return `<path class="idea-line" style="${style}" d="${path(xs, ys)}"/>`;
    };
    return { box, X, Y, ticks, band, line, back: (px, py) => [
      left + ((px - box.left) / (box.right - box.left)) * (right - left),
      top - ((py - box.top) / (box.bottom - box.top)) * 2 * top,
    ] };
  }

  /* The picture inside the axes; what lies outside is cut off. */
  function clipped(id, { box }, inside) {
    const size = `width="${box.right - box.left}" height="${box.bottom - box.top}"`;
    return `<clipPath id="${id}"><rect x="${box.left}" y="${box.top}" ${size}/></clipPath>
      <g clip-path="url(#${id})">${inside}</g>`;
  }

  function weightPicture(size, state, found, prior, networks) {
    const plot = frame(size, [0, 1], WEIGHT_TOP, "depth t", "weight", [0, 0.5, 1], [-4, -2, 0, 2, 4]);
    const depths = Array.from({ length: FINE + 1 }, (_, m) => m / FINE);
    const band = (of, kind) => plot.band(depths, depths.map((_, m) => of.weight(state.unit, m)), kind);
    // A layer keeps its weight over its whole step, so a path is a staircase.
    const layers = middles(state.layers), corners = Array.from({ length: 2 * state.layers }, (_, i) => i);
    const at = corners.map((i) => ((i + 1) >> 1) / state.layers);
    const lines = networks.map((paths, i) => {
      const steps = corners.map((corner) => paths[state.unit][layers[corner >> 1]]);
      return plot.line(at, steps, i);
    });
    const bands = (state.posterior ? band(prior, "idea-prior") : "") + band(found, "idea-band");
    return clipped("idea-clip-w", plot, bands + lines.reverse().join("")) + plot.ticks;
  }

  function functionPicture(size, state, found, prior, networks) {
    const plot = frame(size, [-EDGE, EDGE], TOP, "input x", "output f(x)", [-4, -2, 0, 2, 4], [-4, -2, 0, 2, 4]);
    const xs = Array.from({ length: GRID }, (_, i) => -EDGE + (2 * EDGE * i) / (GRID - 1)), phis = xs.map(features);
    const band = (of, kind) => plot.band(xs, xs.map(of.function), kind);
    const lines = networks.map((paths, i) => plot.line(xs, phis.map((phi) => output(paths, phi, state.layers)), i));
    const dots = state.points.map(([x, y]) => `<circle class="idea-dot" cx="${plot.X(x)}" cy="${plot.Y(y)}" r="4"/>`);
    const unit = plot.X(CENTRES[state.unit]), foot = plot.box.bottom;
    const mark = `<path class="idea-unit" d="M${unit} ${foot - 9}l6 9h-12z"/>`;
    const bands = (state.posterior ? band(prior, "idea-prior") : "") + band(found, "idea-band");
    const inside = bands + lines.reverse().join("") + mark + dots.join("");
    return { svg: clipped("idea-clip-f", plot, inside) + plot.ticks, back: plot.back };
  }

  /* What is shown, in words. */
  function inWords(state, found) {
    const say = (value) => value.toFixed(2), { points, gap, beyond } = spreads(found, state.points, EDGE);
    const count = state.points.length, seed = `Seed ${state.seed}.`;
    if (!state.posterior || !count) {
      const why = state.posterior ? "There are no dots, so the posterior is the prior. " : "The prior. ";
      return `${why}The standard deviation of the function is ${say(beyond)} at every x. Price: KL 0 nats. ${seed}`;
    }
    const between = gap === null ? "" : `${say(gap)} in the middle of the widest gap between them, `;
    return `The posterior given ${count} ${count === 1 ? "dot" : "dots"}. Standard deviation of the function: ` +
      `${say(points)} at the dots, ${between}` +
      `${say(beyond)} at the farther edge of the picture. Price: KL ${found.kl().toFixed(1)} nats. ${seed}`;
  }

  function start(root) {
    const state = { points: START.slice(), seed: 1 };
    root.innerHTML = `<div class="idea-pictures">
      <figure><figcaption>One weight of each network, over depth</figcaption><svg role="img"></svg></figure>
      <figure><figcaption>The functions of the same networks</figcaption><svg role="img"></svg></figure></div>
      <p role="status" class="idea-words"></p><div class="idea-controls">${CONTROLS}</div>`;
    const [left, right] = root.querySelectorAll("svg"), words = root.querySelector(".idea-words");
    const input = (name) => root.querySelector(`input[name="${name}"]`);
    let back = null;

    function draw() {
      const size = { width: left.clientWidth, height: left.clientHeight };
      if (!size.width) return; // the page has no layout yet; the observer below calls again
      const sigma = Number(input("sigma").value), draws = Number(input("draws").value);
      state.layers = 2 ** Number(input("layers").value);
      state.unit = Number(input("unit").value);
      state.posterior = root.querySelector('input[value="posterior"]').checked;
      const unit = number(CENTRES[state.unit].toFixed(1));
      const shown = { sigma: sigma.toFixed(1), layers: state.layers, draws, unit };
      for (const each of root.querySelectorAll("output")) each.textContent = shown[each.dataset.of];
      const prior = law(sigma, state.layers, []);
      const found = state.posterior ? law(sigma, state.layers, state.points) : prior;
      const networks = Array.from({ length: draws }, (_, i) => found.draw(state.seed, i));
      const functions = functionPicture(size, state, found, prior, networks);
      left.innerHTML = weightPicture(size, state, found, prior, networks);
      right.innerHTML = functions.svg;
      back = functions.back;
      words.textContent = inWords(state, found);
      for (const svg of [left, right]) svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
      left.setAttribute("aria-label", `The weight of the unit at x = ${unit} over depth, a path for each network.`);
      right.setAttribute("aria-label", `The functions of the same networks, and ${state.points.length} dots.`);
    }

    function add(x, y) {
      if (Math.abs(x) > EDGE || Math.abs(y) > TOP) return;
      state.points = [...state.points, [x, y]].slice(-MOST_POINTS);
      root.querySelector('input[value="posterior"]').checked = true;
      draw();
    }

    const actions = {
      again() { state.seed += 1; },
      remove() { state.points = []; },
      reset() {
        Object.assign(state, { points: START.slice(), seed: 1 });
        for (const each of root.querySelectorAll("input")) {
          each.value = each.defaultValue;
          each.checked = each.defaultChecked;
        }
      },
    };
    root.addEventListener("click", (event) => {
      const action = event.target.closest("[data-do]");
      if (!action) return;
      actions[action.dataset.do]();
      draw();
    });
    root.querySelector(".idea-controls").addEventListener("input", draw);
    root.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      add(Number(input("x").value), Number(input("y").value));
    });
    right.addEventListener("click", (event) => {
      const box = right.getBoundingClientRect();
      add(...back(event.clientX - box.left, event.clientY - box.top));
    });
    new ResizeObserver(draw).observe(root.querySelector(".idea-pictures"));
  }

  if (typeof document === "undefined") return;
  const ready = () => {
    const root = document.getElementById("idea-figure");
    if (root && !root.dataset.started) {
      root.dataset.started = "yes";
      start(root);
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", ready);
  else ready();
})();
