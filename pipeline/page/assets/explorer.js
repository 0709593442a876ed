// Rollouts: a list that can be filtered, the group of one side by side, and one token by token.
// Texts of the run go into the page as text nodes only. They are visible already: no control character is left in them.
"use strict";
(() => {
  const settings = JSON.parse(document.getElementById("explorer-settings").textContent);
  const SIGNS = new RegExp(settings.signs, "u"), PAGE = settings.page;
  const SPECIAL = 1, MASKED = 2, LOW = 4, HIGH = 8, NOTHING = "–", LISTED = 200, NUMBERED = 300, TYPING = 120; // ms until a reader who types has paused
  const at = (id) => document.getElementById(id);
  const form = at("filters"), body = at("rows"), pane = at("rollout"), said = at("found");

  // --- what is stored ----------------------------------------------------------------------------

  const unpacked = async (element) => {
    const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const blocks = [], tokens = new Map();
  let every = new Uint32Array(0), found = every, first = 0, open = null, waiting = 0;
  const starts = []; // of each block among all rollouts

  const place = (number) => {
    let block = starts.length - 1;
    while (starts[block] > number) block -= 1;
    return [blocks[block], number - starts[block]];
  };
  const idOf = (block, row) => `${block.iteration}/${block.prompt_id[block.group[row]]}/${block.sample[row]}`;
  const word = (coded, row) => coded && coded.codes.length ? coded.words[coded.codes[row]] : null;
  const value = (column, row) => column ? column[row] : null;

  const tokensOf = async (block) => {
    const element = at(`tokens-${block.iteration}`);
    if (!element) return null;
    if (!tokens.has(block.iteration)) {
      tokens.set(block.iteration, unpacked(element).then((views) => {
        views.place = new Map(views.row.map((row, view) => [row, view]));
        views.start = [];
        views.marks.reduce((sum, marks) => { views.start.push(sum); return sum + marks.length; }, 0);
        return views;
      }));
    }
    return tokens.get(block.iteration);
  };

  // --- filters -----------------------------------------------------------------------------------

  const bound = (name) => form.elements[name].value === "" ? null : Number(form.elements[name].value);
  const within = (number, low, high) =>
    (low === null && high === null) || (number !== null && (low === null || number >= low) && (high === null || number <= high));

  const matching = () => {
    const key = form.elements.iteration.value, finish = form.elements.finish.value;
    const text = form.elements.text.value.toLowerCase();
    const [rewardLow, rewardHigh, low, high] = ["reward-low", "reward-high", "advantage-low", "advantage-high"].map(bound);
    const kept = [];
    blocks.forEach((block, number) => {
      if (key && block.iteration !== key) return;
      if (text) block.lower ??= block.text.map((each) => each.toLowerCase());
      for (let row = 0; row < block.text.length; row += 1) {
        if (finish && word(block.finish, row) !== finish) continue;
        if (!within(value(block.reward, row), rewardLow, rewardHigh)) continue;
        if (!within(value(block.advantage, row), low, high)) continue;
        if (text && !block.lower[row].includes(text) && !(block.prompt[block.group[row]] || "").toLowerCase().includes(text)) continue;
        kept.push(starts[number] + row);
      }
    });
    return kept;
  };

  const sorted = (kept) => {
    const [name, direction] = form.elements.order.value.split(" ");
    if (!name) return kept;
    const sign = direction === "down" ? -1 : 1;
    const keys = new Map(kept.map((number) => {
      const [block, row] = place(number);
      return [number, value(block[name], row)];
    }));
    const last = (each) => each === null ? 1 : 0;
    return kept.sort((one, two) => {
      const a = keys.get(one), b = keys.get(two);
      return last(a) - last(b) || (a === null ? 0 : sign * (a - b)) || one - two;
    });
  };

  // --- drawing -----------------------------------------------------------------------------------

  const make = (tag, kind, text) => {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text !== undefined && text !== null) element.textContent = text;
    return element;
  };
  const number = (each, digits = 4) => each === null || each === undefined ? NOTHING : String(Number(each.toPrecision(digits)));
  const signed = (each) => each === null || each === undefined ? NOTHING : `${each < 0 ? "−" : "+"}${Math.abs(each).toFixed(3)}`;

  // Text with the signs for what has no look set apart.
  const marked = (element, text) => {
    text.split(SIGNS).forEach((piece, place) => {
      if (piece) element.append(place % 2 ? make("span", "sign", piece) : piece);
    });
    return element;
  };

  const showList = () => {
    body.replaceChildren(...Array.from(found.slice(first, first + PAGE), (each) => {
      const [block, row] = place(each), line = make("tr");
      line.dataset.number = each;
      line.classList.toggle("open", each === open);
      const name = make("td"), button = make("button", "", `${block.iteration} · ${block.prompt_id[block.group[row]].slice(0, 4)} · ${block.sample[row]}`);
      button.type = "button";
      button.title = idOf(block, row);
      name.append(button);
      const cells = [
        make("td", "answer", block.text[row].slice(0, LISTED)),
        make("td", "n", block.tokens[row]),
        make("td", "", word(block.finish, row)),
        make("td", "n", number(value(block.reward, row))),
        make("td", "n", signed(value(block.advantage, row))),
      ];
      line.append(name, ...cells);
      return line;
    }));
    const last = Math.min(first + PAGE, found.length);
    said.value = found.length ? `${(first + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${found.length.toLocaleString("en")}` : "no rollout fits";
    at("previous").disabled = first === 0;
    at("next").disabled = last >= found.length;
  };

  const filter = () => { clearTimeout(waiting); found = sorted(matching()); first = 0; showList(); };

  const pairs = (rows) => {
    const list = make("dl");
    for (const [name, text] of rows) list.append(make("dt", "", name), marked(make("dd"), text));
    return list;
  };

  const strip = (block, row, views) => {
    const view = views.place.get(row), start = views.start[view], marks = views.marks[view];
    const element = make("pre", "strip");
    let offset = 0, clipped = 0;
    for (let token = 0; token < marks.length; token += 1) {
      const position = start + token, bits = parseInt(marks[token], 16);
      const size = views.size[position], probability = Math.exp(Math.min(views.logprob[position], 0) / 1000);
      const text = views.spelled[view] ? block.text[row].slice(offset, offset + size) : `[${views.id[position]}]`;
      offset += size;
      const level = settings.levels.filter((each) => probability < each).length;
      const held = bits & LOW ? "low" : bits & HIGH ? "high" : "";
      const span = make("span", ["t", level && `h${level}`, bits & SPECIAL && "special", bits & MASKED && "masked", held && "clip"].filter(Boolean).join(" "));
      const ratio = views.ratio ? views.ratio[position] : null;
      span.title = [
        `token ${token}, id ${views.id[position]}`,
        `log-prob ${(views.logprob[position] / 1000).toFixed(3)}, p ${probability.toFixed(3)}`,
        ratio === null ? "" : `ratio ${(ratio / 1000).toFixed(3)}`,
        bits & MASKED ? "not trained on" : "",
        held ? `held by the ${held === "low" ? "lower" : "upper"} bound` : "",
      ].filter(Boolean).join(", ");
      marked(span, text);
      if (held) { span.append(settings.clips[held]); clipped += 1; }
      element.append(span);
    }
    return [element, clipped];
  };

  // The same in numbers, for those who cannot point at a token.
  const grid = (block, row, views) => {
    const view = views.place.get(row), start = views.start[view], count = Math.min(views.marks[view].length, NUMBERED);
    const more = views.marks[view].length - count, table = make("table"), head = make("tr"), rows = make("tbody");
    head.append(make("th", "n", "token"), make("th", "", "text"), ...["id", "p", "log-prob", ...(views.ratio ? ["ratio"] : [])].map((name) => make("th", "n", name)));
    let offset = 0;
    for (let token = 0; token < count; token += 1) {
      const position = start + token, line = make("tr"), size = views.size[position], log = views.logprob[position] / 1000;
      const ratio = views.ratio ? views.ratio[position] : null;
      line.append(
        make("td", "n", token), marked(make("td"), views.spelled[view] ? block.text[row].slice(offset, offset + size) : NOTHING),
        make("td", "n", views.id[position]), make("td", "n", Math.exp(Math.min(log, 0)).toFixed(3)), make("td", "n", log.toFixed(3)),
        ...(views.ratio ? [make("td", "n", ratio === null ? NOTHING : (ratio / 1000).toFixed(3))] : []),
      );
      offset += size;
      rows.append(line);
    }
    table.append(make("thead"), rows);
    table.tHead.append(head);
    const details = make("details"), frame = make("div", "wide tall");
    frame.tabIndex = 0;
    frame.append(table);
    details.append(make("summary", "", more ? `The first ${count} tokens in numbers` : "Tokens in numbers"), frame);
    return details;
  };

  const completion = (block, row, views) => {
    if (!views || !views.place.has(row)) {
      return [marked(make("pre"), block.text[row]), make("p", "sub", `Not here token by token; rollbook show ${idOf(block, row)}`)];
    }
    const [element, clipped] = strip(block, row, views);
    const legend = at("legend").content.cloneNode(true);
    const notes = [views.said, clipped ? `${clipped} held by a bound of the loss (${settings.clips.low} lower, ${settings.clips.high} upper)` : ""].filter(Boolean);
    return [element, legend, ...notes.map((note) => make("p", "sub", note)), grid(block, row, views)];
  };

  const card = (block, row, chosen) => {
    const item = make("li", row === chosen ? "open" : ""), button = make("button", "", `answer ${block.sample[row]}${block.greedy.includes(row) ? ", greedy" : ""}`);
    button.type = "button";
    button.dataset.row = row;
    if (row === chosen) button.setAttribute("aria-current", "true");
    const numbers = `reward ${number(value(block.reward, row))}, advantage ${signed(value(block.advantage, row))}`;
    const size = `${block.tokens[row]} token${block.tokens[row] === 1 ? "" : "s"}, ${word(block.finish, row)}`;
    const text = marked(make("pre"), block.text[row]);
    text.tabIndex = 0;
    text.setAttribute("aria-label", `text of answer ${block.sample[row]}`);
    item.append(button, make("p", "", numbers), make("p", "", size), text);
    return item;
  };

  const show = async (each, focus) => {
    const [block, row] = place(each), views = await tokensOf(block), id = idOf(block, row);
    open = each;
    for (const line of body.children) line.classList.toggle("open", Number(line.dataset.number) === each);
    const group = block.group[row], heading = make("h3", "", `Rollout ${id}`);
    heading.tabIndex = -1;
    const rewards = Object.entries(block.rewards);
    const facts = [
      ["reward", number(value(block.reward, row), 6)],
      ...(rewards.length > 1 ? rewards.map(([name, column]) => [name, number(column[row], 6)]) : []),
      ["advantage", signed(value(block.advantage, row))],
      ["finish", `${word(block.finish, row)}, ${block.tokens[row]} tokens`],
      ...(block.reference[group] === null ? [] : [["reference answer", block.reference[group]]]),
      ...(block.error[row] ? [["error", block.error[row]]] : []),
      ...(word(block.fate, row) === null ? [] : [["update", word(block.fate, row)]]),
      ...(value(block.loss_share, row) === null ? [] : [["share of the loss", `${(100 * block.loss_share[row]).toFixed(2)} %`]]),
    ];
    const siblings = block.group.flatMap((each, number) => each === group ? [number] : []);
    const cards = make("ol", "cards");
    cards.append(...siblings.map((each) => card(block, each, row)));
    cards.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) show(starts[blocks.indexOf(block)] + Number(button.dataset.row), true);
    });
    pane.replaceChildren(
      heading,
      make("h4", "hidden", "Prompt"), marked(make("pre"), block.prompt[group] ?? "The prompts are not on disk."),
      make("h4", "hidden", "Completion"), ...completion(block, row, views),
      pairs(facts),
      make("h3", "", `Its group: ${siblings.length} answers to this prompt`), cards,
    );
    history.replaceState(null, "", `#${id}`);
    if (focus) heading.focus();
  };

  const showId = (id) => {
    const [key, prompt, sample] = id.split("/");
    const number = blocks.findIndex((block) => block.iteration === key);
    const block = blocks[number];
    const row = block ? block.sample.findIndex((each, row) => (sample === undefined || each === sample) && block.prompt_id[block.group[row]] === prompt) : -1;
    if (row >= 0) { at("rollouts").scrollIntoView(); show(starts[number] + row, true); return; }
    pane.replaceChildren(make("p", "", `${id} is not on this page; rollbook show ${id}`));
    at("rollouts").scrollIntoView();
  };
  const showHash = () => { const id = decodeURIComponent(location.hash.slice(1)); if (id.includes("/")) showId(id); };

  // --- what the reader does ----------------------------------------------------------------------

  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr");
    if (line) show(Number(line.dataset.number), event.target.closest("button") !== null);
  });
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], buttons = [...body.querySelectorAll("button")];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (next) { next.focus(); event.preventDefault(); }
  });
  pane.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const button = body.querySelector("tr.open button") || body.querySelector("button");
    if (button) button.focus();
  });
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    if (event.target.tagName === "SELECT") filter();
    else waiting = setTimeout(filter, TYPING);
  });
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  const turn = (by) => { first = Math.max(0, first + by * PAGE); showList(); };
  at("previous").addEventListener("click", () => turn(-1));
  at("next").addEventListener("click", () => turn(1));
  addEventListener("hashchange", showHash);

  (async () => {
    const elements = [...document.querySelectorAll("script[data-block]")];
    for (const element of elements) {
      said.value = `reading ${blocks.length + 1} of ${elements.length} iterations …`;
      starts.push((starts.at(-1) ?? 0) + (blocks.at(-1)?.text.length ?? 0));
      blocks.push(await unpacked(element));
      const options = form.elements.finish;
      for (const each of blocks.at(-1).finish.words) {
        if (![...options.options].some((option) => option.value === each)) options.append(new Option(each, each));
      }
      form.elements.iteration.append(new Option(blocks.at(-1).iteration, blocks.at(-1).iteration));
    }
    filter();
    showHash();
    document.documentElement.dataset.explorer = "ready";
  })();
})();
