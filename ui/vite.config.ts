import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Paths are relative, so that the page works behind any proxy; nothing is loaded from elsewhere.
export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: { outDir: "../src/hocket/observe/serve/assets", emptyOutDir: true, sourcemap: false, target: "es2022" },
});
