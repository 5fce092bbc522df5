// The frame around the pages: address, theme, keys.
import { html, render, useEffect, useState, usePreference, applyTheme, route, to } from "./lib.js";
import { Runs } from "./pages/runs.js";
import { Run } from "./pages/run.js";
import { Workers } from "./pages/workers.js";
import { Experiment } from "./pages/experiment.js";
import { Compare } from "./pages/compare.js";

// The token has become a cookie: it need not stay in the address or the history.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", `/${location.hash}`);

const THEMES = { auto: "light", light: "dark", dark: "auto" };
const KEYS = [
  ["/", "filter"], ["j, k", "next and previous row"], ["Enter", "open the row"], ["x", "select it, to compare"],
  ["c", "compare what is selected"], ["g", "go to all runs"], ["t", "theme: as the system, light, dark"], ["?", "these keys"],
];

function App() {
  const [where, setWhere] = useState(route());
  const [theme, setTheme] = usePreference("theme", "auto");
  const [connection, setConnection] = useState("connecting");
  useEffect(() => applyTheme(theme), [theme]);
  useEffect(() => {
    const moved = () => { setWhere(route()); scrollTo(0, 0); };
    const connected = (event) => setConnection(event.detail);
    addEventListener("hashchange", moved);
    addEventListener("connection", connected);
    return () => { removeEventListener("hashchange", moved); removeEventListener("connection", connected); };
  }, []);
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest("input,select,textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") document.getElementById("keys").showModal();
      else if (event.key === "t") setTheme(THEMES[theme]);
      else if (event.key === "g") location.hash = to.runs();
      else if (event.key === "/") {
        const field = document.querySelector("input[type=search]");
        if (field) { event.preventDefault(); field.focus(); }
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [theme]);
  const [page, id, sub] = where.parts;
  let content;
  if (page === "run" && sub === "workers") content = html`<${Workers} key=${id} id=${id} />`;
  else if (page === "run") content = html`<${Run} key=${id} id=${id} />`;
  else if (page === "experiment") content = html`<${Experiment} key=${id} id=${id} />`;
  else if (page === "compare") content = html`<${Compare} key=${where.query.toString()} ids=${where.query.getAll("id")} />`;
  else content = html`<${Runs} />`;
  const said = { live: "live", connecting: "connecting", lost: "connection lost, trying again", refused: "refused: open the address that lockstep ui printed" };
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${to.runs()}><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><g><rect x="7" y="8" width="4" height="16" rx="2" /><rect x="14" y="8" width="4" height="16" rx="2" /><rect x="21" y="8" width="4" height="16" rx="2" /></g></svg>lockstep</a>
      <span class=${`connection ${connection}`} role="status">${said[connection]}</span>
      <span class="grow"></span>
      <button type="button" class="quiet" onClick=${() => setTheme(THEMES[theme])} aria-label=${`Theme: ${theme}. Change it`}>Theme: ${theme}</button>
      <button type="button" class="quiet keys" onClick=${() => document.getElementById("keys").showModal()} aria-label="Keys">?</button>
    </header>
    <main id="main" tabindex="-1">${content}</main>
    <dialog id="keys" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>
      <dl class="facts">${KEYS.map(([key, what]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
      <form method="dialog"><button class="primary">Close</button></form></dialog>`;
}

render(html`<${App} />`, document.getElementById("app"));
