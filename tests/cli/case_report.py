# SPDX-License-Identifier: Apache-2.0
"""`hisparse report`: what stands on the page is what stands in the files, hostile text stays text, and a browser shows it."""
import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from harness import PATIENCE_S, Skip
from traces import imported, pattern

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&amp; \u0001 \u202e é"
VOID = {"meta", "line", "circle", "rect", "polyline"}  # of SVG those are written <.../>


class Page(HTMLParser):
    """Tables {caption: [row, ...]}, labels of points in order, tags, links and all text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.labels, self.tags, self.links, self.ids, self.text, self.open = {}, [], set(), [], [], "", []
        self.cell = None
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        assert not any(name.startswith("on") for name in given), given
        self.links += [given[name] for name in ("href", "src", "action", "data") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        if given.get("class", "").startswith("point"):
            self.labels.append(given["aria-label"])
        if tag == "table":
            self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th", "caption"):
            self.cell = ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in VOID:  # a browser writes <line></line>
            return
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"
        if tag == "caption":
            self.caption = self.cell
        if tag in ("td", "th"):
            self.rows[-1].append(self.cell)
        if tag == "table":
            self.tables.setdefault(self.caption, []).append(self.rows)

    def handle_data(self, data):
        self.text += data
        if self.cell is not None:
            self.cell += data


def report(cli, *files):
    r = cli.run("report", *files)
    cli.same((r.code, r.err), (0, ""), f"report {files}")
    return Page(r.out)


def refused(cli, *words, says):
    r = cli.run("report", *words)
    cli.same((r.code, r.out, r.err.count("\n")), (2, "", 1), f"exit code, output and lines of {words}")
    assert says in r.err, f"{says!r} is not in {r.err!r}"


def write(cli, name, whole):
    (cli.folder / name).write_text(whole if isinstance(whole, str) else json.dumps(whole))
    return name


def says(cell, value):
    """A cell is what JSON has: to the last bit of a number."""
    if value is None:
        return cell == "-"
    if isinstance(value, (bool, str)):
        return cell == (str(value).lower() if isinstance(value, bool) else value)
    return float(cell) == value


def same_rows(table, rows):
    head, *lines = table
    assert len(lines) == len(rows), f"{len(lines)} lines of {len(rows)} rows"
    for line, row in zip(lines, rows):
        for key, cell in zip(head, line):
            assert says(cell, row.get(key)), f"{key}: {cell!r} for {row.get(key)!r}"


def swept(cli):
    imported(cli, "drawn", pattern(40, 3, 16, 500), (40, 3, 16), "--row-bytes", "656")
    cli.same(cli.run("sweep", "drawn.safetensors", "--json", "--by-layer", "-o", "sweep.json").code, 0, "sweep")
    return json.loads((cli.folder / "sweep.json").read_text())


def path_row(**changes):
    """A row of `bench decode-path`, which needs a GPU to be made."""
    row = {"batch": 1, "context_tokens": 131072, "row_bytes": 656, "group_layers": 4, "miss_percent": 5.0, "mechanism_us": 8.752,
           "link_waiting_us": 2.724, "link_prefetched_us": 2.22, "exposed_waiting_us": 11.476, "exposed_prefetched_us": 10.972,
           "hidden_percent": 18.5022, "resident_us": 264.128, "resident_p99_us": 265.14, "waiting_us": 275.604,
           "waiting_p99_us": 276.536, "prefetched_us": 275.1, "prefetched_p99_us": 276.384, "wrong_rows": 0}
    return row | changes


def path_result(**changes):
    single = path_row(group_layers=1, link_prefetched_us=None, exposed_prefetched_us=None, hidden_percent=None,
                      prefetched_us=None, prefetched_p99_us=None)
    return {"what": "decode-path", "command": "hisparse bench decode-path", "note": "made up",
            "rows": [single, path_row(), path_row(batch=32, miss_percent=13.4), path_row(batch=32)]} | changes


def test_sweep_is_drawn(cli):
    rows = swept(cli)["rows"]
    page = report(cli, "sweep.json")
    whole = [r for r in rows if r["layer"] is None]
    same_rows(page.tables["Misses by slots and policy; belady is the least there can be"][0], whole)
    for policy in ("lru", "belady", "segmented"):
        same_rows(page.tables[f"Misses by layer, policy {policy}"][0],
                  [r for r in rows if r["policy"] == policy and r["layer"] is not None])
    want = [(r["policy"], r["slots"], r["missed_percent"]) for r in whole]
    got = [(policy.split(",")[0], int(policy.split(" ")[1]), float(value.rstrip("% missed")))
           for policy, value in (label.split(": ") for label in page.labels if " slots: " in label and "layer" not in label)]
    cli.same(got, want, "points of the miss curve")
    cli.same(sum("layer" in label for label in page.labels), len(rows) - len(whole), "fields of the heat maps")


def test_exposure_and_percentiles_are_drawn(cli):
    result = path_result()
    page = report(cli, write(cli, "path.json", result))
    same_rows(page.tables["All numbers"][0], result["rows"])
    for batch in (1, 32):
        some = [r for r in result["rows"] if r["batch"] == batch]
        same_rows(page.tables[f"What a layer costs beyond all resident, batch {batch}"][0], some)
        same_rows(page.tables[f"Medians and 99th percentiles, batch {batch}"][0], some)
    cli.same(page.labels[:2], ["group of 1: mechanism 8.752 us a layer, link 2.724 us a layer, hidden - us a layer",
                               "group of 4: mechanism 8.752 us a layer, link 2.22 us a layer, hidden 0.504 us a layer"], "bars")
    assert "group of 4, prefetched: median 275.1 us, p99 276.384 us" in page.labels, page.labels


def test_plan_bench_and_parts_are_drawn(cli):
    plan = cli.run("plan", "--model", "glm-5.3", "--machine", "h200", "--json").json()
    bench = cli.run("bench", "swap-in", "--k", "32", "--slots", "64", "--context", "1024", "--seconds", "0.01", "--json").json()
    score = {"model": "m", "bits_per_byte": 2.0625, "digest": "00ff", "scored_tokens": 7, "dense": False, "each": {"bits": [1]}}
    parts = {"machine": "one", "date": "2026-12-01", "part": bench, "other": {"command": "c", "result": plan}, "strange": [{"a": 1}],
             "list": [plan, plan]}
    page = report(cli, write(cli, "plan.json", plan), write(cli, "score.json", score), write(cli, "parts.json", parts))
    for table in page.tables["Plan"]:
        same_rows(table, plan["rows"])
    cli.same(len(page.tables["Plan"]), 4, "plans")
    same_rows(page.tables["All numbers"][0], bench["rows"])
    cli.same(page.tables["Score"][0], [["model", "m"], ["bits_per_byte", "2.0625"], ["digest", "00ff"], ["scored_tokens", "7"],
                                       ["dense", "false"]], "score")
    assert plan["note"] in page.text and "Not drawn: parts.json, strange" in page.text and "Not drawn: parts.json, list" not in page.text, page.text[:1000]


def test_page_stands_alone(cli):
    """No script, nothing from elsewhere, and every link leads somewhere."""
    swept(cli)
    page = report(cli, "sweep.json", write(cli, "path.json", path_result()))
    style = cli.run("report", "sweep.json").out.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style and "</" not in style, style
    assert not page.tags & {"script", "link", "img", "iframe", "object", "base", "form", "foreignobject"}, page.tags
    for link in page.links:
        assert link[0] == "#" and link[1:] in page.ids, link
    cli.same(len(page.ids), len(set(page.ids)), "ids")


def test_hostile_text_is_text(cli):
    rows = [path_row(**{HOSTILE: HOSTILE}) | {"miss_percent": HOSTILE}, path_row(mechanism_us=1e308, link_waiting_us=-1e308, waiting_us=-1e308),
            path_row(batch=HOSTILE), path_row(batch=None, waiting_p99_us=2**62), path_row(batch=[1], resident_us={"a": 1})]
    sweep = [{"policy": policy, "slots": slots, "layer": layer, "missed_percent": missed} for policy in (HOSTILE, None, 3, "é" * 3000)
             for slots in (-1e308, 1e308, 2**62, HOSTILE, None) for layer in (None, HOSTILE, 7, -1e300) for missed in (-1e308, 1e308, 0)]
    name = "a<b>&.json"
    page = report(cli, write(cli, name, path_result(rows=rows, command=HOSTILE, note=HOSTILE, machine={"cpu": HOSTILE})),
                  write(cli, "sweep.json", {"what": "sweep", "rows": sweep}),
                  write(cli, "parts.json", {HOSTILE: {"what": "sweep", "rows": sweep[:3]}, HOSTILE + "2": []}))
    assert not page.tags & {"script", "img"}, page.tags
    seen = HOSTILE.replace("\u0001", " ")
    assert page.text.count(seen) > 6 and name in page.text, page.text[:2000]
    assert seen in page.tables["All numbers"][0][0] and seen in page.tables["All numbers"][0][1]
    same_rows(page.tables["All numbers"][0][:1] + page.tables["All numbers"][0][2:3], rows[1:2])
    raw = cli.run("report", name, "sweep.json").out
    assert not any(f'="{word}"' in raw for word in ("nan", "-nan", "inf", "-inf")), "coordinates"


def test_refusals(cli):
    cli.golden("help_report", "report", "--help")
    cli.golden("report_no_file", "report")
    cli.golden("report_missing_file", "report", "nowhere.json")
    refused(cli, ".", says="'.' is no regular file of at most 64 MiB")
    for text, why in (("", "line 1"), ("{", "line 1"), ('{"a": NaN}', "line 1"), ('{"a": 1e999}', "real number overflow"),
                      ("[" * 100000, "maximum parsing depth"), ('{"what": "\\ud800"}', "line 1"), ("\0", "line 1")):
        refused(cli, write(cli, "bad.json", text), says=f"'bad.json', {why}" if why.startswith("line") else why)
    row, known = path_row(), "that can be drawn; those are the JSON of sweep, plan, bench decode-path"
    for whole, why in (({}, known), ([], known), ({"what": "verify", "rows": [row]}, known), ({"rows": [row]}, known),
                       ([{"what": "sweep", "rows": [row]}], known), ({"what": ["sweep"], "rows": [row]}, known),
                       (path_result(rows=[]), "has a result of bench decode-path without rows"),
                       (path_result(rows={}), "without rows"), (path_result(rows=[row, 5]), "without rows"),
                       (path_result(rows=[{"batch": 1}]), "whose first row has no 'mechanism_us'"),
                       (path_result(rows=[row] * 10001), "has 10001 rows; at most 10000"),
                       ({str(i): path_result(rows=[row]) for i in range(257)}, "has more results than 256")):
        refused(cli, write(cli, "bad.json", whole), says=why)
    good = write(cli, "good.json", path_result())
    refused(cli, good, "bad.json", "-o", "page.html", says="bad.json")
    assert not (cli.folder / "page.html").exists()
    refused(cli, good, "-o", "nowhere/page.html", says="cannot write 'nowhere/page.html': No such file")
    r = cli.run("report", *[good] * 33)
    assert r.code == 2 and "is one word more than 32" in r.err, r.err


def test_figures_are_drawn(cli):
    """bench/plot_results.py: the lines and bars of its figures are the numbers of the files."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise Skip("matplotlib is not installed") from missing
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
    import plot_results
    rows = swept(cli)["rows"]
    made = plot_results.figures(cli.folder / "sweep.json")
    want = [(r["slots"], r["missed_percent"]) for r in rows if r["layer"] is None]
    cli.same([point for line in made["sweep-misses"].axes[0].lines for point in zip(*line.get_data())], want, "miss curve")
    picture = made["sweep-layers-fifo"].axes[0].images[0].get_array()
    for r in rows:
        if r["policy"] == "fifo" and r["layer"] is not None:
            assert picture[r["layer"]][r["slots"] // 16 - 1] == r["missed_percent"], r
    made = plot_results.figures(cli.folder / write(cli, "path.json", path_result()))
    cli.same([round(float(bar.get_width()), 9) for bar in made["path-exposure-batch1"].axes[0].patches],
             [8.752, 8.752, 2.724, 2.22, 0, 0.504], "exposure")
    cli.same(made["path-percentiles-batch32"].axes[0].patches[0].get_width(), 264.128, "median")
    for form, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        done = subprocess.run([sys.executable, plot_results.__file__, "--format", form, "figures", "path.json"], cwd=cli.folder,
                              stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        cli.same((done.returncode, len(done.stdout.split())), (0, 4), "figures written")
        assert all((cli.folder / name).read_bytes().startswith(begin) for name in done.stdout.split()), done.stdout
    done = subprocess.run([sys.executable, plot_results.__file__, "figures", write(cli, "bad.json", {"what": "plan", "rows": []})],
                          cwd=cli.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1 and "bad.json: no result that can be drawn" in done.stderr, done.stderr


def browse(cli, *options):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={cli.folder}/profile", *options,
               (cli.folder / "page.html").as_uri()]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=PATIENCE_S, cwd=cli.folder).stdout


def test_a_browser_shows_it(cli):
    if not shutil.which("chromium"):
        raise Skip("chromium is not installed")
    rows = swept(cli)["rows"]
    cli.same(cli.run("report", "sweep.json", "-o", "page.html").code, 0, "report")
    written, shown = Page((cli.folder / "page.html").read_text()), Page(browse(cli, "--dump-dom"))
    cli.same((shown.tables, shown.labels), (written.tables, written.labels), "what the browser made of the page")
    same_rows(shown.tables["Misses by slots and policy; belady is the least there can be"][0], [r for r in rows if r["layer"] is None])
    pictures = []
    for scheme in ("0", "1"):  # dark, light
        browse(cli, "--screenshot=page.png", "--window-size=1000,900", f"--blink-settings=preferredColorScheme={scheme}")
        pictures.append((cli.folder / "page.png").read_bytes())
    assert len(pictures[0]) > 10000 and len(pictures[1]) > 10000 and pictures[0] != pictures[1], [len(p) for p in pictures]
