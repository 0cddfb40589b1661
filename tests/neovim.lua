-- Opens a file in a headless Neovim, lets the server check it, applies its first quick fix, and
-- writes what was seen as JSON. The environment names the command (OOMLINT) and the file (REPORT).
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

local ok, failure = pcall(function()
  vim.bo.filetype = "python"
  local client = vim.lsp.start_client({
    name = "oomlint",
    cmd = { vim.env.OOMLINT, "server" },
    root_dir = vim.fn.getcwd(),
  })
  vim.lsp.buf_attach_client(0, client)
  vim.wait(30000, function() return #vim.diagnostic.get(0) > 0 end, 20)
  local before = diagnostics()

  vim.api.nvim_win_set_cursor(0, { vim.diagnostic.get(0)[1].lnum + 1, 0 })
  local params = vim.lsp.util.make_range_params()
  params.context = { diagnostics = vim.lsp.diagnostic.get_line_diagnostics(), only = { "quickfix" } }
  local replies = vim.lsp.buf_request_sync(0, "textDocument/codeAction", params, 30000)
  local action = replies[client].result[1]
  vim.lsp.util.apply_workspace_edit(action.edit, vim.lsp.get_client_by_id(client).offset_encoding)
  local text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), "\n")
  vim.wait(30000, function() return #vim.diagnostic.get(0) < #before end, 20)
  report({ before = before, title = action.title, text = text, after = diagnostics() })
end)
if not ok then report({ failure = tostring(failure) }) end
