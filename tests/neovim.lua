-- Opens a file in a headless Neovim, lets the server check it, shows a rule's page, applies the
-- first quick fix, saves, and writes what was seen as JSON. The environment names the command
-- (OOMLINT), the file (REPORT) and perhaps a configuration that starts the server (SNIPPET).
local function report(seen)
  local file = assert(io.open(vim.env.REPORT, "w"))
  file:write(vim.json.encode(seen))
  file:close()
  vim.cmd("qa!")
end

local function diagnostics()
  local shown = {}
  for _, item in ipairs(vim.diagnostic.get(0)) do
    table.insert(shown, {
      code = item.code or item.user_data.lsp.code,
      source = item.source,
      severity = item.severity,
      message = item.message,
      text = vim.api.nvim_buf_get_text(0, item.lnum, item.col, item.end_lnum, item.end_col, {})[1],
    })
  end
  return shown
end

-- The client of the buffer, once there is one.
local function attached()
  local found
  vim.wait(90000, function()
    local clients = vim.lsp.get_clients and vim.lsp.get_clients({ bufnr = 0 })
      or vim.lsp.buf_get_clients(0)
    for _, client in pairs(clients) do found = client end
    return found ~= nil
  end, 20)
  return assert(found, "no server was started")
end

-- The diagnostics of the cursor's line as the server sent them.
local function given_diagnostics()
  if not vim.lsp.get_clients then return vim.lsp.diagnostic.get_line_diagnostics() end
  local given = {}
  for _, item in ipairs(vim.diagnostic.get(0)) do table.insert(given, item.user_data.lsp) end
  return given
end

local function start()
  if vim.env.SNIPPET then
    dofile(vim.env.SNIPPET)
    vim.bo.filetype = "python"
    return
  end
  vim.bo.filetype = "python"
  local client = vim.lsp.start_client({
    name = "oomlint",
    cmd = { vim.env.OOMLINT, "server" },
    root_dir = vim.fn.getcwd(),
  })
  vim.lsp.buf_attach_client(0, client)
end

local ok, failure = pcall(function()
  start()
  local client = attached()
  vim.wait(90000, function() return #vim.diagnostic.get(0) > 0 end, 20)
  local before = diagnostics()
  if vim.env.LENSES then
    vim.wait(90000, function() return #vim.lsp.codelens.get(0) > 0 end, 20)
  end
  local lenses = {}
  for _, lens in ipairs(vim.lsp.codelens.get(0)) do
    table.insert(lenses, { lens.range.start.line, lens.command.title, lens.command.command })
  end

  local function ask(method, line, column, context)
    vim.api.nvim_win_set_cursor(0, { line, column })
    local params = vim.lsp.util.make_range_params(0, client.offset_encoding)
    params.position, params.context = params.range.start, context
    local replies, why = vim.lsp.buf_request_sync(0, method, params, 90000)
    return assert(replies, why)[client.id].result
  end

  local first = vim.diagnostic.get(0)[1]
  local page = ask("textDocument/hover", first.lnum + 1, first.col + 1).contents.value
  local given = given_diagnostics()
  local context = { diagnostics = given, only = { "quickfix" } }
  local action = ask("textDocument/codeAction", first.lnum + 1, 0, context)[1]
  vim.lsp.util.apply_workspace_edit(action.edit, client.offset_encoding)
  vim.wait(90000, function() return #vim.diagnostic.get(0) < #before end, 20)
  vim.cmd("write")
  report({
    before = before,
    page = page,
    title = action.title,
    lenses = lenses,
    after = diagnostics(),
    pulls = (client.server_capabilities or {}).diagnosticProvider ~= nil and vim.lsp.get_clients ~= nil,
  })
end)
if not ok then report({ failure = tostring(failure) }) end
