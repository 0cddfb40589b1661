import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import Module from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fakeVscode } from "./fake_vscode";

const PYTHON = process.env.OOMLINT_PYTHON;

interface Extension {
  activate(context: { subscriptions: unknown[] }): Promise<void>;
  deactivate(): Promise<void>;
}

/** The built extension, given another module than the editor's. */
function load(vscode: unknown): Extension {
  const loader = Module as unknown as { _load: (request: string, ...rest: unknown[]) => unknown };
  const before = loader._load;
  loader._load = (request, ...rest) => (request === "vscode" ? vscode : before(request, ...rest));
  try {
    const path = join(process.cwd(), "dist", "extension.js");
    // Each test has its own.
    // eslint-disable-next-line @typescript-eslint/no-dynamic-delete
    delete require.cache[path];
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    return require(path) as Extension;
  } finally {
    loader._load = before;
  }
}

void test("the built extension starts the real server and its commands reach it", { skip: PYTHON === undefined }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "oomlint-"));
  const uri = `file://${folder}/train.py`;
  const active = { document: { uri: { toString: () => uri }, version: 1 }, selection: { active: { line: 2 } } };
  const { module, commands, shown } = fakeVscode(folder, { interpreter: PYTHON }, active);
  const extension = load(module);
  await extension.activate({ subscriptions: [] });
  assert.deepEqual(shown, []);
  for (const name of ["oomlint.restart", "oomlint.fixAll", "oomlint.measureHere", "oomlint.measure"]) {
    assert.ok(commands.has(name), name);
  }
  await commands.get("oomlint.measureHere")?.();
  for (let waited = 0; shown.length === 0 && waited < 600; waited++) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.deepEqual(shown, ["oomlint: nothing was measured: that document is not open here"]);
  await extension.deactivate();
});

void test("a server that does not start is told with the way out", async () => {
  const { module, shown } = fakeVscode("/", { path: "/nowhere/oomlint" }, undefined);
  const extension = load(module);
  await extension.activate({ subscriptions: [] });
  const said = shown.find((message) => message.startsWith("oomlint: the server does not start (/nowhere/oomlint)"));
  assert.match(said ?? "", /pip install/);
  await extension.deactivate();
});
