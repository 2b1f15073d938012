// The search of a site that is read from a folder: a page of file:// may start no worker, so a hidden frame runs the worker's script.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = data => this.onmessage?.(new MessageEvent("message", { data }));
      this.ready = new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        Object.assign(script, { src: url, onload: done, onerror: failed });
        this.inside.document.body.append(script);
      });
      this.ready.catch(() => this.onerror?.(new ErrorEvent("error")));
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })), () => {});
    }
    terminate() {
      this.frame.remove();
    }
  };
}
