// Rollouts and evaluation answers: a list that can be filtered, the group of one side by side, and one token by token.
// A block holds those of one iteration, or the answers of its policy to one evaluation set.
// Texts of the run go into the page as text nodes only. They are visible already: no control character is left in them.
"use strict";
(() => {
  const settings = JSON.parse(document.getElementById("explorer-settings").textContent);
  const SIGNS = new RegExp(settings.signs, "u"), PAGE = settings.page;
  const SPECIAL = 1, MASKED = 2, LOW = 4, HIGH = 8, NOTHING = "–";
  const LISTED = 200, BESIDE = 1200; // characters of a completion in the list, and beside others of its group
  const STRIP = 1000, PLAIN = 6000; // tokens, and characters of texts without tokens, until the reader wants all
  const NUMBERED = 300; // tokens written out in numbers
  const TYPING = 120; // ms until a reader who types has paused
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
    const block = starts.findLastIndex((start) => start <= number);
    return [blocks[block], number - starts[block]];
  };
  const idOf = (block, row) => `${block.name}/${block.prompt_id[block.group[row]]}/${block.sample[row]}`;
  const word = (coded, row) => coded && coded.codes.length ? coded.words[coded.codes[row]] : null;
  const value = (column, row) => column ? column[row] : null;

  const tokensOf = async (block) => {
    const element = at(`tokens-${block.name}`);
    if (!element) return null;
    if (!tokens.has(block.name)) {
      tokens.set(block.name, unpacked(element).then((views) => {
        views.place = new Map(views.row.map((row, view) => [row, view]));
        views.start = [];
        views.marks.reduce((sum, marks) => { views.start.push(sum); return sum + marks.length; }, 0);
        return views;
      }));
    }
    return tokens.get(block.name);
  };

  // Texts in small letters, for the search: made while nothing else is to do, or when they are needed.
  const lower = (block) => {
    block.lower ??= { text: block.text.map((each) => each.toLowerCase()), prompt: block.prompt.map((each) => (each || "").toLowerCase()) };
    return block.lower;
  };

  // --- filters -----------------------------------------------------------------------------------

  const bound = (name) => form.elements[name].value === "" ? null : Number(form.elements[name].value);
  const within = (number, low, high) =>
    (low === null && high === null) || (number !== null && (low === null || number >= low) && (high === null || number <= high));

  // Which iterations are of the chosen chain; of all chains where none is.
  const keysOfChain = () => {
    const chain = settings.chains.find(([name]) => name === form.elements.chain?.value);
    return chain ? (key) => chain[1].includes(key) : () => true;
  };

  const matching = () => {
    const set = form.elements.of.value, key = form.elements.iteration.value, finish = form.elements.finish.value;
    const ofChain = keysOfChain();
    const text = form.elements.text.value.toLowerCase();
    const [rewardLow, rewardHigh, low, high] = ["reward-low", "reward-high", "advantage-low", "advantage-high"].map(bound);
    const kept = [];
    blocks.forEach((block, number) => {
      if (block.set !== set || !ofChain(block.iteration) || (key && block.iteration !== key)) return;
      const asked = text ? lower(block).prompt.map((each) => each.includes(text)) : [];
      for (let row = 0; row < block.text.length; row += 1) {
        if (finish && word(block.finish, row) !== finish) continue;
        if (!within(value(block.reward, row), rewardLow, rewardHigh)) continue;
        if (!set && !within(value(block.advantage, row), low, high)) continue;
        if (text && !asked[block.group[row]] && !block.lower.text[row].includes(text)) continue;
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

  // A sentence of this program: what stands between backticks is code.
  const told = (element, text) => {
    text.split(/`([^`]+)`/).forEach((piece, place) => {
      if (place % 2) element.append(make("code", "", piece));
      else marked(element, piece);
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

  const strip = (block, row, views, most) => {
    const view = views.place.get(row), start = views.start[view], marks = views.marks[view].slice(0, most);
    const element = make("pre", "strip");
    let offset = 0;
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
      if (held) span.append(settings.clips[held]);
      element.append(span);
    }
    return element;
  };
  const clippedIn = (marks) => [...marks].filter((mark) => parseInt(mark, 16) & (LOW | HIGH)).length;

  // The same in numbers, for those who cannot point at a token; made when it is opened.
  const grid = (block, row, views) => {
    const all = views.marks[views.place.get(row)].length, count = Math.min(all, NUMBERED);
    const details = make("details"), frame = make("div", "wide tall");
    frame.tabIndex = 0;
    details.append(make("summary", "", all > count ? `The first ${count} tokens in numbers` : "Tokens in numbers"), frame);
    details.addEventListener("toggle", () => frame.append(numbers(block, row, views, count)), { once: true });
    return details;
  };
  const numbers = (block, row, views, count) => {
    const view = views.place.get(row), start = views.start[view], table = make("table"), head = make("tr"), rows = make("tbody");
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
    return table;
  };

  // A button that puts the whole in the place of a part.
  const offerWhole = (part, text, whole) => {
    const button = make("button", "", text);
    button.type = "button";
    button.addEventListener("click", () => {
      const element = whole();
      element.tabIndex = -1;
      part.replaceWith(element);
      button.remove();
      element.focus();
    });
    return button;
  };

  // A text without tokens.
  const plain = (text) => {
    const part = marked(make("pre"), ends(text, PLAIN)), whole = () => marked(make("pre"), text);
    return text.length > PLAIN ? [part, offerWhole(part, `All ${text.length.toLocaleString("en")} characters`, whole)] : [part];
  };

  const completion = (block, row, views) => {
    const text = block.text[row];
    if (!views || !views.place.has(row)) {
      return [...plain(text), told(make("p", "sub"), `Not here token by token; \`rollbook show ${idOf(block, row)}\` has it`)];
    }
    const marks = views.marks[views.place.get(row)], part = strip(block, row, views, STRIP), clipped = clippedIn(marks);
    const whole = () => strip(block, row, views, marks.length);
    const rest = marks.length > STRIP ? [offerWhole(part, `All ${marks.length.toLocaleString("en")} tokens; these are the first ${STRIP.toLocaleString("en")}`, whole)] : [];
    const legend = at("legend").content.cloneNode(true);
    const notes = [views.said, clipped ? `${clipped} held by a bound of the loss (${settings.clips.low} lower, ${settings.clips.high} upper)` : ""].filter(Boolean);
    return [part, ...rest, legend, ...notes.map((note) => told(make("p", "sub"), note)), grid(block, row, views)];
  };

  // Both ends of a long text: its answer stands at the end.
  const ends = (text, most) => {
    const left = text.length - most;
    return left <= 0 ? text : `${text.slice(0, most / 2)}\n… ${left.toLocaleString("en")} characters …\n${text.slice(-most / 2)}`;
  };

  const card = (block, row, chosen) => {
    const item = make("li", row === chosen ? "open" : ""), button = make("button", "", `answer ${block.sample[row]}${block.greedy.includes(row) ? ", greedy" : ""}`);
    button.type = "button";
    button.dataset.row = row;
    if (row === chosen) button.setAttribute("aria-current", "true");
    const advantage = block.set ? "" : `, advantage ${signed(value(block.advantage, row))}`;
    const numbers = `reward ${number(value(block.reward, row))}${advantage}`;
    const size = `${block.tokens[row]} token${block.tokens[row] === 1 ? "" : "s"}, ${word(block.finish, row)}`;
    const text = marked(make("pre"), ends(block.text[row], BESIDE));
    text.tabIndex = 0;
    text.setAttribute("aria-label", `text of answer ${block.sample[row]}`);
    item.append(button, make("p", "", numbers), make("p", "", size), text);
    return item;
  };

  const show = async (each, focus) => {
    const [block, row] = place(each), id = idOf(block, row);
    open = each;
    const views = await tokensOf(block);
    if (open !== each) return; // the reader has opened another one while this was unpacked
    for (const line of body.children) line.classList.toggle("open", Number(line.dataset.number) === each);
    const group = block.group[row], heading = make("h3", "", `Rollout ${id}`);
    heading.tabIndex = -1;
    const rewards = Object.entries(block.rewards);
    const facts = [
      ["reward", number(value(block.reward, row), 6)],
      ...(rewards.length > 1 ? rewards.map(([name, column]) => [name, number(column[row], 6)]) : []),
      ...(block.set ? [] : [["advantage", signed(value(block.advantage, row))]]),
      ["finish", `${word(block.finish, row)}, ${block.tokens[row]} tokens`],
      ...(block.reference[group] === null ? [] : [["reference answer", ends(block.reference[group], PLAIN)]]),
      ...(block.error[row] ? [["error", ends(block.error[row], PLAIN)]] : []),
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
      make("h4", "hidden", "Prompt"), ...plain(block.prompt[group] ?? "The prompts are not on disk."),
      make("h4", "hidden", "Completion"), ...completion(block, row, views),
      pairs(facts),
      make("h3", "", `Its group: ${siblings.length} answers to this prompt`), cards,
    );
    history.replaceState(null, "", `#${encodeURI(id)}`);
    if (focus) heading.focus();
  };

  const showId = (id) => {
    const number = blocks.findIndex((block) => id.startsWith(`${block.name}/`));
    const block = blocks[number], [prompt, sample] = block ? id.slice(block.name.length + 1).split("/") : [];
    const row = block ? block.sample.findIndex((each, row) => (sample === undefined || each === sample) && block.prompt_id[block.group[row]] === prompt) : -1;
    if (row >= 0) { at("rollouts").scrollIntoView(); show(starts[number] + row, true); return; }
    open = null;
    pane.replaceChildren(told(make("p"), `${id} is not on this page; \`rollbook show ${id}\` has it`));
    at("rollouts").scrollIntoView();
  };
  const showHash = () => {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { /* typed by hand: it is shown as it is */ }
    if (id.includes("/")) showId(id);
  };

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
  // Iterations that the chosen kind and chain have, and what of the kind is not here; only rollouts have advantages.
  const fit = () => {
    const set = form.elements.of.value, ofChain = keysOfChain();
    const keys = new Set(blocks.filter((block) => block.set === set && ofChain(block.iteration)).map((block) => block.iteration));
    const list = settings.lists[set ? 1 : 0];
    for (const note of document.querySelectorAll("[data-of]")) note.hidden = note.dataset.of !== list;
    for (const option of form.elements.iteration.options) option.hidden = option.disabled = option.value !== "" && !keys.has(option.value);
    if (form.elements.iteration.selectedOptions[0]?.disabled) form.elements.iteration.value = "";
    at("advantages").disabled = set !== "";
  };
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    if (event.target.name === "of" || event.target.name === "chain") fit();
    if (event.target.tagName === "SELECT") filter();
    else waiting = setTimeout(filter, TYPING);
  });
  form.addEventListener("reset", () => setTimeout(() => { fit(); filter(); }));
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  const turn = (by) => { first = Math.max(0, first + by * PAGE); showList(); };
  at("previous").addEventListener("click", () => turn(-1));
  at("next").addEventListener("click", () => turn(1));
  addEventListener("hashchange", showHash);

  const offer = (name, value, text) => {
    const choice = form.elements[name];
    if (![...choice.options].some((option) => option.value === value)) choice.append(new Option(text, value));
  };
  (async () => {
    const elements = [...document.querySelectorAll("script[data-block]")];
    for (const element of elements) {
      said.value = `reading ${blocks.length + 1} of ${elements.length} parts …`;
      starts.push((starts.at(-1) ?? 0) + (blocks.at(-1)?.text.length ?? 0));
      blocks.push(await unpacked(element));
      for (const each of blocks.at(-1).finish.words) offer("finish", each, each);
      offer("of", blocks.at(-1).set, blocks.at(-1).set ? `evaluation: ${blocks.at(-1).set}` : "training");
      offer("iteration", blocks.at(-1).iteration, blocks.at(-1).iteration);
    }
    if (settings.chains.length > 1) {
      for (const [name] of settings.chains) offer("chain", name, name);
      offer("chain", "", "all");
    } else at("chain").remove();
    const keys = form.elements.iteration; // by number; all of them stay first
    keys.append(...[...keys.options].sort((one, two) => one.value.slice(-4).localeCompare(two.value.slice(-4))));
    keys.value = "";
    fit();
    filter();
    showHash();
    document.documentElement.dataset.explorer = "ready";
    for (const block of blocks) {
      await new Promise((resume) => (window.requestIdleCallback ?? setTimeout)(resume));
      lower(block);
    }
  })();
})();
