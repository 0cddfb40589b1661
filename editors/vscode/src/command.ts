/** Which program is the server, from what the settings say and what is installed. */

import { homedir } from "node:os";

export interface Choice {
  readonly path: string;
  readonly interpreter: string;
  readonly args: readonly string[];
}

export interface Command {
  readonly command: string;
  readonly args: readonly string[];
}

/** Whether a Python can import what the server needs. */
export type Probe = (interpreter: string) => boolean;

// Not `-m`, which looks into the open folder first: what lies there must not take oomlint's place.
const INSTALLED = "import sys; sys.path[:] = filter(None, sys.path); ";

/** What a probe runs: imports nothing but asks whether it could. */
export const PROBE = `${INSTALLED}from importlib.util import find_spec as f; sys.exit(not (f('oomlint') and f('pygls')))`;

const BOOT = `${INSTALLED}from oomlint.cli import main; main()`;

/**
 * The command of the server: the program that is named, else the Python that is named, else the
 * selected one if oomlint is installed there, else what the PATH knows.
 */
export function serverCommand(choice: Choice, selected: string | undefined, hasServer: Probe): Command {
  if (choice.path !== "") {
    return { command: expanded(choice.path), args: ["server", ...choice.args] };
  }
  if (choice.interpreter !== "") {
    return ofInterpreter(expanded(choice.interpreter), choice.args);
  }
  if (selected !== undefined && hasServer(selected)) {
    return ofInterpreter(selected, choice.args);
  }
  return { command: "oomlint", args: ["server", ...choice.args] };
}

/** A path as a shell would read it: settings are shared between machines. */
function expanded(path: string): string {
  return path.replace(/^~(?=[/\\])/, homedir());
}

function ofInterpreter(interpreter: string, args: readonly string[]): Command {
  return { command: interpreter, args: ["-c", BOOT, "server", ...args] };
}
