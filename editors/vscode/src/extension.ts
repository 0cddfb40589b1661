/** Starts `oomlint server` for Python files and notebooks, and gives its commands names. */

import { spawnSync } from "node:child_process";
import * as vscode from "vscode";
import { ExecuteCommandRequest, LanguageClient, type LanguageClientOptions } from "vscode-languageclient/node";
import { PROBE, serverCommand } from "./command";

const NAME = "oomlint";
const PATIENCE_MS = 10_000;
/** A change of these needs another process; all others are asked for by the server itself. */
const LAUNCH = ["path", "interpreter", "args"];

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  context.subscriptions.push(
    vscode.commands.registerCommand("oomlint.restart", restart),
    vscode.commands.registerCommand("oomlint.fixAll", fixAll),
    vscode.commands.registerCommand("oomlint.measureHere", measureHere),
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (LAUNCH.some((key) => event.affectsConfiguration(`${NAME}.${key}`))) {
        await restart();
      }
    }),
  );
  await start();
}

export async function deactivate(): Promise<void> {
  // One that never came up cannot be stopped.
  if (client?.needsStop() === true) {
    await client.stop();
  }
  client = undefined;
}

async function restart(): Promise<void> {
  await deactivate();
  await start();
}

async function start(): Promise<void> {
  const settings = vscode.workspace.getConfiguration(NAME);
  const choice = {
    path: settings.get("path", ""),
    interpreter: settings.get("interpreter", ""),
    args: settings.get<string[]>("args", []),
  };
  const server = serverCommand(choice, await selectedInterpreter(), hasServer);
  const options: LanguageClientOptions = {
    documentSelector: [
      { scheme: "file", language: "python" },
      { scheme: "untitled", language: "python" },
      { scheme: "vscode-notebook-cell", language: "python" },
    ],
  };
  const started = new LanguageClient(
    NAME,
    NAME,
    { command: server.command, args: [...server.args] },
    options,
  );
  client = started;
  try {
    await started.start();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    void vscode.window.showErrorMessage(
      `oomlint: the server does not start (${server.command}): ${reason}. ` +
        'Install it with `pip install "oomlint[lsp]"`, or name the program in `oomlint.path`.',
    );
  }
}

function hasServer(interpreter: string): boolean {
  const tried = spawnSync(interpreter, ["-c", PROBE], { timeout: PATIENCE_MS });
  return tried.status === 0;
}

interface PythonApi {
  readonly environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { readonly path: string };
  };
}

/** The interpreter that the Python extension has selected, where there is one. */
async function selectedInterpreter(): Promise<string | undefined> {
  const python = vscode.extensions.getExtension<PythonApi>("ms-python.python");
  if (python === undefined) {
    return undefined;
  }
  const api = python.isActive ? python.exports : await python.activate();
  return api.environments?.getActiveEnvironmentPath(vscode.workspace.workspaceFolders?.[0]?.uri).path;
}

async function fixAll(): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (editor !== undefined) {
    await ask("oomlint.applyAutofix", { uri: wireUri(editor.document.uri), version: editor.document.version });
  }
}

async function measureHere(): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (editor !== undefined) {
    await ask("oomlint.measure", { uri: wireUri(editor.document.uri), line: editor.selection.active.line });
  }
}

function wireUri(uri: vscode.Uri): string {
  return client?.code2ProtocolConverter.asUri(uri) ?? uri.toString();
}

async function ask(command: string, argument: object): Promise<void> {
  if (client?.isRunning() !== true) {
    void vscode.window.showWarningMessage("oomlint: the server does not run; try “oomlint: Restart the server”.");
    return;
  }
  await client.sendRequest(ExecuteCommandRequest.type, { command, arguments: [argument] });
}
