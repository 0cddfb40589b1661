import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { homedir } from "node:os";
import { test } from "node:test";
import { PROBE, serverCommand } from "../src/command";

const NOTHING = { path: "", interpreter: "", args: [] };
const PYTHON = process.env.OOMLINT_PYTHON ?? "";
const skip = PYTHON === "";

void test("a program that is named is the server", () => {
  const choice = { path: "/bin/oomlint", interpreter: "/bin/python", args: ["--tcp"] };
  assert.deepEqual(serverCommand(choice, "/other/python", () => true), {
    command: "/bin/oomlint",
    args: ["server", "--tcp"],
  });
});

void test("a path may begin with the home folder", () => {
  const choice = { ...NOTHING, path: "~/bin/oomlint" };
  assert.equal(serverCommand(choice, undefined, () => false).command, `${homedir()}/bin/oomlint`);
});

void test("a Python that is named is taken unasked, a selected one if oomlint is there", () => {
  const named = serverCommand({ ...NOTHING, interpreter: "/bin/python" }, "/other", () => false);
  assert.equal(named.command, "/bin/python");
  assert.equal(named.args.at(-1), "server");
  assert.equal(serverCommand(NOTHING, "/other", (python) => python === "/other").command, "/other");
  assert.equal(serverCommand(NOTHING, "/other", () => false).command, "oomlint");
  assert.equal(serverCommand(NOTHING, undefined, () => true).command, "oomlint");
});

void test("the probe tells by its status whether a Python has the server", { skip }, () => {
  const tried = spawnSync(PYTHON, ["-c", PROBE]);
  assert.equal(tried.status, 0);
  // Isolated from what is installed beside it, it has none.
  assert.equal(spawnSync(PYTHON, ["-S", "-c", PROBE]).status, 1);
});

void test("what a Python is told starts the program", { skip }, () => {
  const { command, args } = serverCommand({ ...NOTHING, interpreter: PYTHON, args: ["--help"] }, undefined, () => false);
  const tried = spawnSync(command, [...args]);
  assert.equal(tried.status, 0);
  assert.match(tried.stdout.toString(), /language server protocol/);
});
