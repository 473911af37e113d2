// Loaded before a server that takes no host: whatever it listens on, it listens on loopback only.

const { Server } = require("node:net");

const listen = Server.prototype.listen;

Server.prototype.listen = function (first, ...rest) {
  const options = typeof first === "object" && first !== null ? { ...first } : { port: Number(first) };
  const callback = rest.find((one) => typeof one === "function");
  return listen.call(this, { ...options, host: "127.0.0.1" }, callback);
};
