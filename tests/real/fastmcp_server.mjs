// A stateful server of npm's fastmcp, set up by PORT, JOURNAL and NPM_FOLDER (where npm installed it).

import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";

// Named by path: a module looks for others beside itself, and those are not in this folder.
const modules = join(process.env.NPM_FOLDER, "node_modules");
const { FastMCP } = await import(join(modules, "fastmcp", "dist", "FastMCP.js"));
const { z } = await import(join(modules, "zod", "index.js"));

const record = (event, value) => appendFileSync(process.env.JOURNAL, `${event} ${value}\n`);

const server = new FastMCP({ name: "fastmcp-npm", version: "1.0.0" });

server.addTool({
  name: "act",
  description: "Do something that must not be done twice.",
  parameters: z.object({ key: z.string() }),
  execute: async ({ key }) => {
    record("call", key);
    return `did ${key}`;
  },
});

server.addTool({
  name: "act_in_steps",
  description: "Do it, and say in between how far it has come.",
  parameters: z.object({ key: z.string(), seconds: z.number() }),
  execute: async ({ key, seconds }, { reportProgress }) => {
    record("call", key);
    await reportProgress({ progress: 1, total: 2 });
    await setTimeout(seconds * 1000);
    await reportProgress({ progress: 2, total: 2 });
    return `did ${key}`;
  },
});

await server.start({
  transportType: "httpStream",
  httpStream: { host: "127.0.0.1", port: Number(process.env.PORT) },
});
