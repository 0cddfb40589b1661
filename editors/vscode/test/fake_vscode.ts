/** As much of VS Code's API as the extension and its language client touch without an editor. */

type Listener = (value: unknown) => unknown;

/** Anything that is asked of it, it is: a class, a function, an object. */
function anything(known: Record<string, unknown> = {}): unknown {
  const target = function (this: unknown): unknown {
    return undefined;
  };
  return new Proxy(target, {
    get(_, name) {
      if (typeof name === "symbol" || name === "then") {
        return name === Symbol.toPrimitive ? () => "" : undefined;
      }
      if (name in Function.prototype || name === "prototype") {
        return (target as unknown as Record<string, unknown>)[name];
      }
      known[name] ??= anything();
      return known[name];
    },
    set(_, name, value) {
      known[String(name)] = value;
      return true;
    },
    apply: () => anything(),
    construct: () => anything() as object,
  });
}

class Disposable {
  constructor(private readonly end: () => void = () => undefined) {}
  static from(...parts: { dispose(): unknown }[]): Disposable {
    return new Disposable(() => {
      for (const part of parts) {
        part.dispose();
      }
    });
  }
  dispose(): void {
    this.end();
  }
}

class EventEmitter {
  private listeners: Listener[] = [];
  readonly event = (listener: Listener): Disposable => {
    this.listeners.push(listener);
    return new Disposable();
  };
  fire(value: unknown): void {
    for (const listener of this.listeners) {
      listener(value);
    }
  }
  dispose(): void {
    this.listeners = [];
  }
}

class Uri {
  constructor(readonly path: string) {}
  readonly scheme = "file";
  get fsPath(): string {
    return this.path;
  }
  toString(): string {
    return `file://${this.path}`;
  }
  static file(path: string): Uri {
    return new Uri(path);
  }
  static parse(text: string): Uri {
    return new Uri(text.replace(/^file:\/\//, ""));
  }
}

const never = (): Disposable => new Disposable();

/** The module `vscode` with an open folder, settings, and what was registered and shown. */
export function fakeVscode(folder: string, settings: Record<string, unknown>, active: object | undefined) {
  const commands = new Map<string, (...given: unknown[]) => unknown>();
  const shown: string[] = [];
  const show = (message: string): Promise<undefined> => {
    shown.push(message);
    return Promise.resolve(undefined);
  };
  const configuration = {
    get: (name: string, otherwise: unknown) => settings[name] ?? otherwise,
    inspect: () => undefined,
  };
  const known = anything({
    Disposable,
    EventEmitter,
    Uri,
    version: "1.91.0",
    env: { appName: "none", language: "en", uriScheme: "none" },
    extensions: { getExtension: () => undefined },
    commands: {
      registerCommand(name: string, run: (...given: unknown[]) => unknown) {
        commands.set(name, run);
        return new Disposable();
      },
      executeCommand: () => Promise.resolve(undefined),
    },
    workspace: anything({
      getConfiguration: () => configuration,
      textDocuments: [],
      notebookDocuments: [],
      workspaceFolders: [{ uri: Uri.file(folder), name: "project", index: 0 }],
      onDidChangeConfiguration: never,
    }),
    window: anything({
      activeTextEditor: active,
      tabGroups: { all: [], onDidChangeTabs: never, onDidChangeTabGroups: never },
      visibleTextEditors: [],
      showErrorMessage: show,
      showWarningMessage: show,
      showInformationMessage: show,
    }),
  });
  // A bundle copies the names that a module has itself, and asks the module's prototype for others.
  const module = new Proxy(
    {},
    { get: (_, name) => (known as Record<string | symbol, unknown>)[name], getPrototypeOf: () => known as object },
  );
  return { module, commands, shown };
}
