import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Drives a broker with RabbitMQ's Java client, as told by lines of JSON on standard input; see ../clients/remote.py. */
public final class Bridge {
    private static final long PATIENCE_MS = 10_000;

    private final Map<Integer, Connection> connections = new HashMap<>();
    private final Map<Integer, Station> stations = new HashMap<>();
    private int lastNumber = 0;

    public static void main(String[] arguments) throws Exception {
        Bridge bridge = new Bridge();
        PrintStream out = new PrintStream(System.out, true, "US-ASCII");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int status = 1;
        try {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.println(Json.write(bridge.answer(new Request(line))));
            }
            status = 0;
        } finally {
            System.exit(status); // the client's threads would keep the process
        }
    }

    private Map<String, Object> answer(Request request) {
        Map<String, Object> answer = new HashMap<>();
        answer.put("id", request.number("id"));
        try {
            answer.put("ok", perform(request));
        } catch (Throwable failure) {
            ShutdownSignalException shutdown = shutdownOf(failure);
            Map<String, Object> refused = shutdown == null ? null : describeClose(shutdown);
            if (refused != null) {
                answer.put("refused", refused);
            } else {
                answer.put("failed", failure.toString());
            }
        }
        return answer;
    }

    private static ShutdownSignalException shutdownOf(Throwable failure) {
        for (Throwable each = failure; each != null; each = each.getCause()) {
            if (each instanceof ShutdownSignalException) {
                return (ShutdownSignalException) each;
            }
        }
        return null;
    }

    private static Map<String, Object> describeClose(ShutdownSignalException shutdown) {
        Method reason = shutdown.getReason();
        Map<String, Object> told = new HashMap<>();
        if (reason instanceof AMQP.Channel.Close) {
            AMQP.Channel.Close close = (AMQP.Channel.Close) reason;
            told.put("scope", "channel");
            told.put("code", close.getReplyCode());
            told.put("text", close.getReplyText());
        } else if (reason instanceof AMQP.Connection.Close) {
            AMQP.Connection.Close close = (AMQP.Connection.Close) reason;
            told.put("scope", "connection");
            told.put("code", close.getReplyCode());
            told.put("text", close.getReplyText());
        } else {
            return null;
        }
        return told;
    }

    private Object perform(Request request) throws Exception {
        switch (request.text("op")) {
            case "connect":
                return connect(request);
            case "open_channel":
                stations.put(++lastNumber, new Station(connections.get(request.number("connection")).createChannel()));
                return lastNumber;
            case "idle":
                Thread.sleep(request.number("timeout_ms"));
                return null;
            case "is_open":
                return connections.get(request.number("connection")).isOpen();
            case "close_connection":
                return close(connections.get(request.number("connection")));
            default:
                return stations.get(request.number("channel")).perform(request);
        }
    }

    private int connect(Request request) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(request.text("url"));
        if (request.text("url").endsWith("/")) {
            factory.setVirtualHost("/");  // the client takes a path of "/" for a virtual host without a name
        }
        factory.setRequestedHeartbeat(request.number("heartbeat"));
        factory.setRequestedFrameMax(request.number("frame_max"));
        factory.setAutomaticRecoveryEnabled(request.has("recovers"));
        factory.setNetworkRecoveryInterval(1000); // time for the broker to let go of what was exclusive
        try {
            connections.put(++lastNumber, factory.newConnection());
        } catch (com.rabbitmq.client.AuthenticationFailureException refused) {
            AMQP.Connection.Close close =
                    new AMQP.Connection.Close.Builder().replyCode(403).replyText(refused.getMessage()).build();
            throw new ShutdownSignalException(true, false, close, null);
        }
        return lastNumber;
    }

    private static Object close(Connection connection) throws Exception {
        try {
            connection.close((int) PATIENCE_MS);
        } catch (ShutdownSignalException closed) {
            if (describeClose(closed) != null && !(closed instanceof AlreadyClosedException)) {
                throw closed;
            }
            return null;  // it was closed already, or lost meanwhile
        }
        return null;
    }

    /** A channel, and what arrives on it by itself. */
    private static final class Station {
        private final Channel channel;
        private final BlockingQueue<Map<String, Object>> deliveries = new LinkedBlockingQueue<>();
        private final BlockingQueue<Map<String, Object>> returns = new LinkedBlockingQueue<>();
        private final BlockingQueue<String> cancellations = new LinkedBlockingQueue<>();
        private final BlockingQueue<ShutdownSignalException> closes = new LinkedBlockingQueue<>();

        Station(Channel channel) {
            this.channel = channel;
            channel.addShutdownListener(closes::add);
            channel.addReturnListener((code, text, exchange, key, properties, body) -> {
                Map<String, Object> told = new HashMap<>();
                told.put("code", code);
                told.put("text", text);
                told.put("exchange", exchange);
                told.put("routing_key", key);
                told.put("body", toWire(body));
                returns.add(told);
            });
        }

        Object perform(Request request) throws Exception {
            String name = request.text("name");
            switch (request.text("op")) {
                case "declare_exchange":
                    return declareExchange(request);
                case "delete_exchange":
                    channel.exchangeDelete(name, request.flag("if_unused"));
                    return null;
                case "bind_exchange":
                    channel.exchangeBind(name, request.text("source"), request.text("key"), request.table("arguments"));
                    return null;
                case "unbind_exchange":
                    channel.exchangeUnbind(
                            name, request.text("source"), request.text("key"), request.table("arguments"));
                    return null;
                case "declare_queue":
                    return declareQueue(request);
                case "bind_queue":
                    channel.queueBind(name, request.text("source"), request.text("key"), request.table("arguments"));
                    return null;
                case "unbind_queue":
                    channel.queueUnbind(name, request.text("source"), request.text("key"), request.table("arguments"));
                    return null;
                case "purge_queue":
                    return channel.queuePurge(name).getMessageCount();
                case "delete_queue":
                    return channel.queueDelete(name, request.flag("if_unused"), request.flag("if_empty"))
                            .getMessageCount();
                case "publish":
                    publish(request, (byte[]) request.value("body"), request.properties());
                    return null;
                case "select_confirms":
                    channel.confirmSelect();
                    return null;
                case "confirm":
                    return confirm(request);
                case "confirm_many":
                    return confirmMany(request);
                case "next_return":
                    return returns.poll(request.number("timeout_ms"), TimeUnit.MILLISECONDS);
                case "get":
                    return get(request);
                case "consume":
                    return channel.basicConsume(
                            name,
                            request.flag("no_ack"),
                            request.text("tag"),
                            false,
                            request.flag("exclusive"),
                            request.table("arguments"),
                            consumer());
                case "cancel":
                    channel.basicCancel(request.text("tag"));
                    return null;
                case "next_delivery":
                    return deliveries.poll(request.number("timeout_ms"), TimeUnit.MILLISECONDS);
                case "next_cancellation":
                    return cancellations.poll(request.number("timeout_ms"), TimeUnit.MILLISECONDS);
                case "ack":
                    channel.basicAck(request.number("tag"), request.flag("multiple"));
                    return null;
                case "nack":
                    channel.basicNack(request.number("tag"), request.flag("multiple"), request.flag("requeue"));
                    return null;
                case "reject":
                    channel.basicReject(request.number("tag"), request.flag("requeue"));
                    return null;
                case "recover":
                    channel.basicRecover(true);
                    return null;
                case "qos":
                    channel.basicQos(request.number("count"), request.flag("for_channel"));
                    return null;
                case "select_transactions":
                    channel.txSelect();
                    return null;
                case "commit":
                    channel.txCommit();
                    return null;
                case "rollback":
                    channel.txRollback();
                    return null;
                case "close_channel":
                    channel.close();
                    return null;
                case "wait_closed":
                    ShutdownSignalException reason = closes.poll(request.number("timeout_ms"), TimeUnit.MILLISECONDS);
                    if (reason != null) {
                        throw reason;
                    }
                    return null;
                default:
                    throw new IllegalArgumentException("no operation " + request.text("op"));
            }
        }

        private Object declareExchange(Request request) throws Exception {
            if (request.flag("passive")) {
                channel.exchangeDeclarePassive(request.text("name"));
            } else {
                channel.exchangeDeclare(
                        request.text("name"),
                        request.text("kind"),
                        request.flag("durable"),
                        request.flag("auto_delete"),
                        request.flag("internal"),
                        request.table("arguments"));
            }
            return null;
        }

        private Object declareQueue(Request request) throws Exception {
            AMQP.Queue.DeclareOk state = request.flag("passive")
                    ? channel.queueDeclarePassive(request.text("name"))
                    : channel.queueDeclare(
                            request.text("name"),
                            request.flag("durable"),
                            request.flag("exclusive"),
                            request.flag("auto_delete"),
                            request.table("arguments"));
            Map<String, Object> told = new HashMap<>();
            told.put("name", state.getQueue());
            told.put("messages", state.getMessageCount());
            told.put("consumers", state.getConsumerCount());
            return told;
        }

        private void publish(Request request, byte[] body, AMQP.BasicProperties properties) throws Exception {
            boolean mandatory = request.has("mandatory") && request.flag("mandatory");
            channel.basicPublish(request.text("name"), request.text("key"), mandatory, properties, body);
        }

        private Object confirm(Request request) throws Exception {
            publish(request, (byte[]) request.value("body"), request.properties());
            Map<String, Object> told = new HashMap<>();
            told.put("confirmed", channel.waitForConfirms(PATIENCE_MS));
            told.put("returned", returns.poll());
            return told;
        }

        private Object confirmMany(Request request) throws Exception {
            int count = 0;
            for (Object body : (List<?>) request.value("bodies")) {
                publish(request, (byte[]) body, null);
                count++;
            }
            return channel.waitForConfirms(PATIENCE_MS) ? count : 0;
        }

        private Object get(Request request) throws Exception {
            GetResponse response = channel.basicGet(request.text("name"), request.flag("no_ack"));
            if (response == null) {
                return null;
            }
            Map<String, Object> told = describe(response.getEnvelope(), response.getProps(), response.getBody());
            told.put("remaining", response.getMessageCount());
            return told;
        }

        private DefaultConsumer consumer() {
            return new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(
                        String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                    Map<String, Object> told = describe(envelope, properties, body);
                    told.put("consumer", tag);
                    deliveries.add(told);
                }

                @Override
                public void handleCancel(String tag) {
                    cancellations.add(tag);
                }
            };
        }
    }

    private static Map<String, Object> describe(Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
        Map<String, Object> told = new HashMap<>();
        told.put("body", toWire(body));
        told.put("exchange", envelope.getExchange());
        told.put("routing_key", envelope.getRoutingKey());
        told.put("tag", envelope.getDeliveryTag());
        told.put("redelivered", envelope.isRedeliver());
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("content_type", properties.getContentType());
        found.put("content_encoding", properties.getContentEncoding());
        found.put("headers", toWire(properties.getHeaders()));
        found.put("delivery_mode", properties.getDeliveryMode());
        found.put("priority", properties.getPriority());
        found.put("correlation_id", properties.getCorrelationId());
        found.put("reply_to", properties.getReplyTo());
        found.put("expiration", properties.getExpiration());
        found.put("message_id", properties.getMessageId());
        found.put("timestamp", properties.getTimestamp() == null ? null : properties.getTimestamp().getTime() / 1000);
        found.put("type", properties.getType());
        found.put("user_id", properties.getUserId());
        found.put("app_id", properties.getAppId());
        found.values().removeIf(value -> value == null);
        told.put("properties", found);
        return told;
    }

    private static Map<String, Object> tagged(String kind, Object value) {
        Map<String, Object> made = new HashMap<>();
        made.put("$", kind);
        made.put("v", value);
        return made;
    }

    private static Object toWire(Object value) {
        if (value instanceof byte[]) {
            return tagged("bytes", Base64.getEncoder().encodeToString((byte[]) value));
        }
        if (value instanceof LongString) {
            return value.toString();
        }
        if (value instanceof Date) {
            return tagged("time", ((Date) value).getTime() / 1000);
        }
        if (value instanceof BigDecimal) {
            return tagged("decimal", value.toString());
        }
        if (value instanceof Map) {
            Map<String, Object> made = new LinkedHashMap<>();
            ((Map<?, ?>) value).forEach((key, each) -> made.put(key.toString(), toWire(each)));
            return made;
        }
        if (value instanceof List) {
            List<Object> made = new ArrayList<>();
            ((List<?>) value).forEach(each -> made.add(toWire(each)));
            return made;
        }
        return value;
    }

    private static Object fromWire(Object value) {
        if (value instanceof Map) {
            Map<?, ?> given = (Map<?, ?>) value;
            if ("bytes".equals(given.get("$"))) {
                return Base64.getDecoder().decode((String) given.get("v"));
            }
            if ("time".equals(given.get("$"))) {
                return new Date(((Number) given.get("v")).longValue() * 1000);
            }
            if ("decimal".equals(given.get("$"))) {
                return new BigDecimal((String) given.get("v"));
            }
            Map<String, Object> made = new LinkedHashMap<>();
            given.forEach((key, each) -> made.put(key.toString(), fromWire(each)));
            return made;
        }
        if (value instanceof List) {
            List<Object> made = new ArrayList<>();
            ((List<?>) value).forEach(each -> made.add(fromWire(each)));
            return made;
        }
        return value;
    }

    /** One line of the conversation. */
    private static final class Request {
        private final Map<?, ?> fields;

        Request(String line) {
            fields = (Map<?, ?>) new Json(line).read();
        }

        boolean has(String field) {
            return fields.containsKey(field);
        }

        Object value(String field) {
            return fromWire(fields.get(field));
        }

        String text(String field) {
            return (String) fields.get(field);
        }

        boolean flag(String field) {
            return (Boolean) fields.get(field);
        }

        int number(String field) {
            return ((Number) fields.get(field)).intValue();
        }

        @SuppressWarnings("unchecked")
        Map<String, Object> table(String field) {
            return (Map<String, Object>) value(field);
        }

        AMQP.BasicProperties properties() {
            Map<String, Object> given = table("properties");
            AMQP.BasicProperties.Builder builder = new AMQP.BasicProperties.Builder();
            builder.contentType((String) given.get("content_type"));
            builder.contentEncoding((String) given.get("content_encoding"));
            @SuppressWarnings("unchecked")
            Map<String, Object> headers = (Map<String, Object>) given.get("headers");
            builder.headers(headers);
            builder.deliveryMode(integer(given.get("delivery_mode")));
            builder.priority(integer(given.get("priority")));
            builder.correlationId((String) given.get("correlation_id"));
            builder.replyTo((String) given.get("reply_to"));
            builder.expiration((String) given.get("expiration"));
            builder.messageId((String) given.get("message_id"));
            Number timestamp = (Number) given.get("timestamp");
            builder.timestamp(timestamp == null ? null : new Date(timestamp.longValue() * 1000));
            builder.type((String) given.get("type"));
            builder.userId((String) given.get("user_id"));
            builder.appId((String) given.get("app_id"));
            return builder.build();
        }

        private static Integer integer(Object value) {
            return value == null ? null : ((Number) value).intValue();
        }
    }

    /** As much JSON as the conversation needs: what Python's json module writes, and ASCII back. */
    private static final class Json {
        private final String text;
        private int position = 0;

        Json(String text) {
            this.text = text;
        }

        Object read() {
            skipBlanks();
            char first = text.charAt(position);
            if (first == '{') {
                return readObject();
            }
            if (first == '[') {
                return readArray();
            }
            if (first == '"') {
                return readString();
            }
            int start = position;
            while (position < text.length() && ",]} ".indexOf(text.charAt(position)) < 0) {
                position++;
            }
            return literal(text.substring(start, position));
        }

        private static Object literal(String word) {
            switch (word) {
                case "null":
                    return null;
                case "true":
                    return true;
                case "false":
                    return false;
                default:
                    if (word.contains(".") || word.contains("e")) {
                        return Double.valueOf(word);
                    }
                    long number = Long.parseLong(word);
                    if (number == (int) number) {
                        return (int) number;
                    }
                    return number;
            }
        }

        private Map<String, Object> readObject() {
            Map<String, Object> made = new LinkedHashMap<>();
            position++;
            while (!ends('}')) {
                skipBlanks();
                String key = readString();
                skipBlanks();
                position++; // the colon
                made.put(key, read());
            }
            return made;
        }

        private List<Object> readArray() {
            List<Object> made = new ArrayList<>();
            position++;
            while (!ends(']')) {
                made.add(read());
            }
            return made;
        }

        /** Step over the closing bracket, or over the comma before another element. */
        private boolean ends(char bracket) {
            skipBlanks();
            char next = text.charAt(position);
            if (next == bracket || next == ',') {
                position++;
            }
            return next == bracket;
        }

        private String readString() {
            StringBuilder made = new StringBuilder();
            position++;
            for (char each = text.charAt(position++); each != '"'; each = text.charAt(position++)) {
                made.append(each == '\\' ? readEscape() : each);
            }
            return made.toString();
        }

        private char readEscape() {
            char kind = text.charAt(position++);
            switch (kind) {
                case 'n':
                    return '\n';
                case 't':
                    return '\t';
                case 'r':
                    return '\r';
                case 'b':
                    return '\b';
                case 'f':
                    return '\f';
                case 'u':
                    position += 4;
                    return (char) Integer.parseInt(text.substring(position - 4, position), 16);
                default:
                    return kind;
            }
        }

        private void skipBlanks() {
            while (text.charAt(position) == ' ') {
                position++;
            }
        }

        static String write(Object value) {
            StringBuilder made = new StringBuilder();
            write(value, made);
            return made.toString();
        }

        private static void write(Object value, StringBuilder made) {
            if (value instanceof Map) {
                String separator = "{";
                for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                    made.append(separator);
                    writeString(each.getKey().toString(), made);
                    made.append(':');
                    write(each.getValue(), made);
                    separator = ",";
                }
                made.append(separator.equals("{") ? "{}" : "}");
            } else if (value instanceof List) {
                String separator = "[";
                for (Object each : (List<?>) value) {
                    made.append(separator);
                    write(each, made);
                    separator = ",";
                }
                made.append(separator.equals("[") ? "[]" : "]");
            } else if (value instanceof String) {
                writeString((String) value, made);
            } else {
                made.append(value);
            }
        }

        private static void writeString(String value, StringBuilder made) {
            made.append('"');
            for (char each : value.toCharArray()) {
                if (each >= ' ' && each < 0x7f && each != '"' && each != '\\') {
                    made.append(each);
                } else {
                    made.append(String.format("\\u%04x", (int) each));
                }
            }
            made.append('"');
        }
    }
}
