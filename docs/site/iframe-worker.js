// Browsers refuse workers to a page that is opened from a folder. There the search of the site runs in a
// hidden frame instead: a Worker as far as the theme uses one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.append(script);
      });
    }
    postMessage(data) {
      const send = () => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      this.ready.then(send, (error) => this.dispatchEvent(new ErrorEvent("error", { error })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
