/* Search where the site is opened as files, without a server: browsers start no worker from file://, so that a hidden
   frame takes its place. On a server this does nothing. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        window.postMessage = message => parent.postMessage(message, "*")
        window.importScripts = () => { throw new Error("no further scripts in a frame") }
      <\/script><script src="${new URL(url, location)}"><\/script>`;
      this.ready = new Promise(done => frame.addEventListener("load", done, { once: true }));
      window.addEventListener("message", event => {
        if (event.source === frame.contentWindow)
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      this.frame = frame;
      const add = () => document.body.append(frame);
      document.body ? add() : document.addEventListener("DOMContentLoaded", add);
    }

    postMessage(message) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data: message }));
      });
    }
  };
