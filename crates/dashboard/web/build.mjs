// Builds the files that are part of the program into ../assets, or into the directory of the first argument.
import { build } from "esbuild";
import { copyFileSync, mkdirSync } from "node:fs";
import { join } from "node:path";

const out = process.argv[2] ?? join(import.meta.dirname, "../assets");
mkdirSync(out, { recursive: true });
await build({
  entryPoints: { app: join(import.meta.dirname, "src/main.tsx"), style: join(import.meta.dirname, "src/app.css") },
  entryNames: "app",
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: out,
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) copyFileSync(join(import.meta.dirname, "src", file), join(out, file));
