'use strict';
// Drives a broker with amqplib, as told by lines of JSON on standard input; see ../clients/remote.py.

const readline = require('node:readline');
const amqplib = require('amqplib');

const connections = new Map();
const channels = new Map();
let lastNumber = 0;

// Things that arrive by themselves, in order, with a way to wait for the next.
class Mailbox {
  constructor() {
    this.items = [];
    this.waiting = null;
  }

  put(item) {
    if (this.waiting) this.waiting(item);
    else this.items.push(item);
  }

  next(timeout) {
    if (this.items.length > 0) return Promise.resolve(this.items.shift());
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.waiting(null), timeout);
      this.waiting = (item) => {
        clearTimeout(timer);
        this.waiting = null;
        resolve(item);
      };
    });
  }
}

class Refused extends Error {
  constructor(scope, code, text) {
    super(text);
    this.told = { scope, code, text };
  }
}

// amqplib tells the reason of a close in a sentence.
function refusal(scope, error) {
  const match = /(\d{3}) \([A-Z-]+\) with message "([^]*)"$/.exec(error.message);
  return match ? new Refused(scope, Number(match[1]), match[2]) : null;
}

function fromWire(value) {
  if (Array.isArray(value)) return value.map(fromWire);
  if (value === null || typeof value !== 'object') return value;
  if (value.$ === 'bytes') return Buffer.from(value.v, 'base64');
  if (value.$ === 'time') return { '!': 'timestamp', value: value.v };
  if (value.$ === 'decimal') {
    const [whole, fraction = ''] = value.v.split('.');
    return { '!': 'decimal', value: { digits: Number(whole + fraction), places: fraction.length } };
  }
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, fromWire(each)]));
}

function toWire(value) {
  if (Buffer.isBuffer(value)) return { $: 'bytes', v: value.toString('base64') };
  if (Array.isArray(value)) return value.map(toWire);
  if (value === null || typeof value !== 'object') return value;
  if (value['!'] === 'timestamp') return { $: 'time', v: value.value };
  if (value['!'] === 'decimal') {
    const { digits, places } = value.value;
    return { $: 'decimal', v: (digits / 10 ** places).toFixed(places) };
  }
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, toWire(each)]));
}

const PROPERTIES = {
  content_type: 'contentType',
  content_encoding: 'contentEncoding',
  headers: 'headers',
  delivery_mode: 'deliveryMode',
  priority: 'priority',
  correlation_id: 'correlationId',
  reply_to: 'replyTo',
  expiration: 'expiration',
  message_id: 'messageId',
  timestamp: 'timestamp',
  type: 'type',
  user_id: 'userId',
  app_id: 'appId',
};

function publishOptions(request) {
  const options = { mandatory: request.mandatory };
  for (const [ours, theirs] of Object.entries(PROPERTIES)) {
    if (request.properties[ours] !== undefined) options[theirs] = fromWire(request.properties[ours]);
  }
  return options;
}

function describe(message) {
  const properties = {};
  for (const [ours, theirs] of Object.entries(PROPERTIES)) {
    const value = message.properties[theirs];
    // Absent headers are shown as an empty object.
    const isAbsent = value === undefined || (ours === 'headers' && Object.keys(value).length === 0);
    if (!isAbsent) properties[ours] = toWire(value);
  }
  const fields = message.fields;
  return {
    body: toWire(message.content),
    exchange: fields.exchange,
    routing_key: fields.routingKey,
    tag: fields.deliveryTag,
    redelivered: fields.redelivered,
    properties,
    consumer: fields.consumerTag,
    remaining: fields.messageCount,
  };
}

function describeReturn(message) {
  return {
    code: message.fields.replyCode,
    text: message.fields.replyText,
    exchange: message.fields.exchange,
    routing_key: message.fields.routingKey,
    body: toWire(message.content),
  };
}

// A channel as the scenarios see it: amqplib has channels with confirms and without, so one of each once confirms are selected.
class Station {
  constructor(connection, plain) {
    this.connection = connection;
    this.plain = plain;
    this.confirming = null;
    this.deliveries = new Mailbox();
    this.returns = new Mailbox();
    this.confirmedReturns = [];
    this.cancellations = new Mailbox();
    this.closes = new Mailbox();
    this.reason = null;
    this.listen(plain);
    plain.on('return', (message) => this.returns.put(describeReturn(message)));
  }

  listen(channel) {
    channel.on('error', (error) => {
      this.reason = refusal('channel', error);
      this.closes.put(this.reason);
    });
  }

  async selectConfirms() {
    this.confirming = await this.connection.model.createConfirmChannel();
    this.listen(this.confirming);
    this.confirming.on('return', (message) => this.confirmedReturns.push(describeReturn(message)));
  }
}

function station(request) {
  return channels.get(request.channel);
}

const handle = (tag) => ({ fields: { deliveryTag: tag } });

const operations = {
  async connect({ url, heartbeat, frame_max }) {
    const target = new URL(url);
    target.searchParams.set('heartbeat', heartbeat);
    if (frame_max) target.searchParams.set('frameMax', frame_max);
    let model;
    try {
      model = await amqplib.connect(target.toString());
    } catch (error) {
      throw refusal('connection', error) || error;
    }
    const ended = new Promise((resolve) => model.once('close', resolve));
    const connection = { model, reason: null, isOpen: true, ended, stations: [] };
    model.on('error', (error) => {
      connection.reason = refusal('connection', error);
    });
    model.on('close', (error) => {
      connection.isOpen = false;
      // A broker that shuts down is no error to amqplib.
      if (error && !connection.reason) connection.reason = refusal('connection', error);
      for (const each of connection.stations) each.closes.put(connection.reason);
    });
    connections.set(++lastNumber, connection);
    return lastNumber;
  },
  async open_channel(request) {
    const connection = connections.get(request.connection);
    const opened = new Station(connection, await connection.model.createChannel());
    connection.stations.push(opened);
    channels.set(++lastNumber, opened);
    return lastNumber;
  },
  async declare_exchange(request) {
    const { name, kind, passive, durable, auto_delete, internal } = request;
    if (passive) return void (await station(request).plain.checkExchange(name));
    const options = { durable, autoDelete: auto_delete, internal, arguments: fromWire(request.arguments) };
    await station(request).plain.assertExchange(name, kind, options);
  },
  async delete_exchange(request) {
    await station(request).plain.deleteExchange(request.name, { ifUnused: request.if_unused });
  },
  async bind_exchange(request) {
    await station(request).plain.bindExchange(request.name, request.source, request.key, fromWire(request.arguments));
  },
  async unbind_exchange(request) {
    await station(request).plain.unbindExchange(request.name, request.source, request.key, fromWire(request.arguments));
  },
  async declare_queue(request) {
    const { name, passive, durable, exclusive, auto_delete } = request;
    const options = { durable, exclusive, autoDelete: auto_delete, arguments: fromWire(request.arguments) };
    const plain = station(request).plain;
    const state = passive ? await plain.checkQueue(name) : await plain.assertQueue(name, options);
    return { name: state.queue, messages: state.messageCount, consumers: state.consumerCount };
  },
  async bind_queue(request) {
    await station(request).plain.bindQueue(request.name, request.source, request.key, fromWire(request.arguments));
  },
  async unbind_queue(request) {
    await station(request).plain.unbindQueue(request.name, request.source, request.key, fromWire(request.arguments));
  },
  async purge_queue(request) {
    return (await station(request).plain.purgeQueue(request.name)).messageCount;
  },
  async delete_queue(request) {
    const options = { ifUnused: request.if_unused, ifEmpty: request.if_empty };
    return (await station(request).plain.deleteQueue(request.name, options)).messageCount;
  },
  async publish(request) {
    station(request).plain.publish(request.name, request.key, fromWire(request.body), publishOptions(request));
  },
  async select_confirms(request) {
    await station(request).selectConfirms();
  },
  async confirm(request) {
    const { confirming, confirmedReturns } = station(request);
    const confirmed = await new Promise((resolve, reject) => {
      const options = publishOptions(request);
      confirming.publish(request.name, request.key, fromWire(request.body), options, (error) => {
        if (error && error.message !== 'message nacked') reject(error);
        else resolve(!error);
      });
    });
    return { confirmed, returned: confirmedReturns.shift() || null };
  },
  async confirm_many(request) {
    const { confirming } = station(request);
    for (const body of request.bodies) confirming.publish(request.name, request.key, fromWire(body), {});
    await confirming.waitForConfirms();
    return request.bodies.length;
  },
  async next_return(request) {
    return station(request).returns.next(request.timeout_ms);
  },
  async get(request) {
    const message = await station(request).plain.get(request.name, { noAck: request.no_ack });
    return message ? describe(message) : null;
  },
  async consume(request) {
    const { plain, deliveries, cancellations } = station(request);
    let tag = request.tag;
    const onMessage = (message) => {
      if (message === null) cancellations.put(tag);
      else deliveries.put(describe(message));
    };
    const options = { noAck: request.no_ack, exclusive: request.exclusive, arguments: fromWire(request.arguments) };
    if (tag) options.consumerTag = tag;
    tag = (await plain.consume(request.name, onMessage, options)).consumerTag;
    return tag;
  },
  async cancel(request) {
    await station(request).plain.cancel(request.tag);
  },
  async next_delivery(request) {
    return station(request).deliveries.next(request.timeout_ms);
  },
  async next_cancellation(request) {
    return station(request).cancellations.next(request.timeout_ms);
  },
  async ack(request) {
    station(request).plain.ack(handle(request.tag), request.multiple);
  },
  async nack(request) {
    station(request).plain.nack(handle(request.tag), request.multiple, request.requeue);
  },
  async reject(request) {
    station(request).plain.reject(handle(request.tag), request.requeue);
  },
  async recover(request) {
    await station(request).plain.recover();
  },
  async qos(request) {
    await station(request).plain.prefetch(request.count, request.for_channel);
  },
  async close_channel(request) {
    await station(request).plain.close();
  },
  async wait_closed(request) {
    const reason = await station(request).closes.next(request.timeout_ms);
    if (reason) throw reason;
  },
  async idle(request) {
    await new Promise((resolve) => setTimeout(resolve, request.timeout_ms));
  },
  async is_open(request) {
    return connections.get(request.connection).isOpen;
  },
  async close_connection(request) {
    const connection = connections.get(request.connection);
    // A close is not answered any more where the connection is lost meanwhile: that is an end, too.
    if (connection.isOpen) await Promise.race([connection.model.close(), connection.ended]);
  },
};

async function answer(request) {
  try {
    const result = await operations[request.op](request);
    return { id: request.id, ok: result === undefined ? null : result };
  } catch (error) {
    // Let the events that belong to this failure arrive: they carry the reason.
    await new Promise((resolve) => setImmediate(resolve));
    const told = station(request);
    const connection = told ? told.connection : connections.get(request.connection);
    const reason =
      error instanceof Refused
        ? error
        : (connection && connection.reason) || refusal('channel', error) || (told && told.reason);
    if (reason) return { id: request.id, refused: reason.told };
    return { id: request.id, failed: error.stack };
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
  }
  process.exit(0);
}

main();
