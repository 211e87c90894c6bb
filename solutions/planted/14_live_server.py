"""Planted answers to exercise 14: each wrong one must fail with these words, each right one pass."""


# %% wrong 14.1 | half a line as JSON
def read_stream(pieces):  # each piece by itself
    text = ""
    for piece in pieces:
        for line in piece.split(b"\n"):
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    return text, "done"
                chunk = json.loads(payload)
                if "error" in chunk:
                    return text, "error"
                if chunk["choices"]:
                    text += chunk["choices"][0]["text"]
    return text, "broken"


# %% wrong 14.1 | half a character
def read_stream(pieces):  # decodes what may be half a character
    text, rest = "", ""
    for piece in pieces:
        *lines, rest = (rest + piece.decode()).split("\n")
        for line in lines:
            if line.startswith("data:"):
                if "[DONE]" in line:
                    return text, "done"
                for choice in json.loads(line[5:]).get("choices", []):
                    text += choice["text"]
    return text, "broken"


# %% wrong 14.1 | wait for ever
def read_stream(pieces):  # waits until all is there
    text = ""
    for line in b"".join(pieces).decode().splitlines():
        if line.startswith("data:"):
            if "[DONE]" in line:
                return text, "done"
            chunk = json.loads(line[5:])
            if "error" in chunk:
                return text, "error"
            text += "".join(c["text"] for c in chunk["choices"])
    return text, "broken"


# %% wrong 14.1 | this stream ends as 'error'
def read_stream(pieces):  # an error looks like any other chunk
    text, rest = "", b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip() in (b"data: [DONE]", b"data:[DONE]"):
                return text, "done"
            if line.startswith(b"data:"):
                text += "".join(c["text"] for c in json.loads(line[5:]).get("choices", []))
    return text, "broken"


# %% wrong 14.1 | must return two things
def read_stream(pieces):
    return "Good day"


# %% right 14.1 | a bytearray and find
def read_stream(pieces):
    buffer, words, ending = bytearray(), [], "broken"
    for piece in pieces:
        buffer += piece
        while (at := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:at]).decode("utf-8").rstrip("\r")
            del buffer[: at + 1]
            if line[:5] != "data:":
                continue
            payload = line[5:].lstrip()
            if payload == "[DONE]":
                return ["".join(words), ending if ending == "error" else "done"]
            event = json.loads(payload)
            if event.get("error"):
                ending = "error"
            elif event["choices"] and ending != "error":
                words.append(event["choices"][0]["text"])
    return ["".join(words), ending]


# %% wrong 14.2 | which holds no token
def latencies(sent, chunks):  # the first chunk
    times = [t for t, n in chunks for _ in range(n)]
    tpot = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
    return chunks[0][0] - sent, tpot, [b - a for a, b in itertools.pairwise(times)]


# %% wrong 14.2 | TPOT is None
def latencies(sent, chunks):  # 0 for what was never measured
    times = [t for t, n in chunks for _ in range(n)]
    if not times:
        return None, None, []
    tpot = (times[-1] - times[0]) / max(1, len(times) - 1)
    return times[0] - sent, tpot, [b - a for a, b in itertools.pairwise(times)]


# %% wrong 14.2 | tokens, not chunks
def latencies(sent, chunks):  # chunks for tokens
    times = [t for t, n in chunks if n]
    tpot = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
    return (
        times[0] - sent if times else None,
        tpot,
        [b - a for a, b in itertools.pairwise(times)],
    )


# %% wrong 14.2 | more after the first token, and 1 gap
def latencies(sent, chunks):  # right sums, and the gaps between chunks
    times = [t for t, n in chunks if n]
    total = sum(n for _, n in chunks)
    tpot = (times[-1] - times[0]) / (total - 1) if total > 1 else None
    return (
        times[0] - sent if times else None,
        tpot,
        [b - a for a, b in itertools.pairwise(times)],
    )


# %% right 14.2 | numpy
def latencies(sent, chunks):
    import numpy as np

    times = np.repeat([t for t, _ in chunks], [int(n) for _, n in chunks])
    if not len(times):
        return None, None, []
    gaps = np.diff(times)
    return times[0] - sent, gaps.mean() if len(gaps) else None, gaps


# %% wrong 14.3 | is let in, and 1 are inside already
class Door:  # lets everybody in
    def __init__(self, max_running, max_queue):
        pass

    def ask(self):
        return None

    def ended(self, now):
        pass


# %% wrong 14.3 | is turned away
class Door:  # forgets that people leave
    def __init__(self, max_running, max_queue):
        self.left = max_running + max_queue

    def ask(self):
        self.left -= 1
        return None if self.left >= 0 else 1

    def ended(self, now):
        pass


# %% wrong 14.3 | the rule says
class Door:  # a constant
    def __init__(self, max_running, max_queue):
        self.free = max_running + max_queue

    def ask(self):
        if self.free == 0:
            return 1
        self.free -= 1
        return None

    def ended(self, now):
        self.free += 1


# %% wrong 14.3 | is turned away
class Door:  # only the slots
    def __init__(self, max_running, max_queue):
        self.free = max_running

    def ask(self):
        if self.free == 0:
            return 1
        self.free -= 1
        return None

    def ended(self, now):
        self.free += 1


# %% wrong 14.3 | the rule says
class Door:  # rounded down, and no fraction of a second is 0
    def __init__(self, max_running, max_queue):
        self.free, self.ends = max_running + max_queue, []

    def ask(self):
        if self.free:
            self.free -= 1
            return None
        ends = self.ends[-8:]
        return max(1, int((ends[-1] - ends[0]) / (len(ends) - 1))) if len(ends) > 1 else 1

    def ended(self, now):
        self.free += 1
        self.ends.append(now)


# %% right 14.3 | numpy and a deque
import math
from collections import deque


class Door:
    def __init__(self, max_running, max_queue):
        self.places = max_running + max_queue
        self.ends = deque(maxlen=8)

    def ask(self):
        import numpy as np

        if self.places:
            self.places -= 1
            return None
        if len(self.ends) < 2:
            return np.int64(1)
        return int(np.clip(math.ceil(np.diff(self.ends).mean() - 1e-12), 1, 60))

    def ended(self, now):
        self.places += 1
        self.ends.append(now)


# %% wrong 14.4 | counts from the server's start
inside = after["vllm:e2e_request_latency_seconds_sum"] / after["time"]
waiting = after["vllm:request_queue_time_seconds_sum"] / after["time"]
full_after = 32 / (after["vllm:request_success_total"] / after["time"])

# %% wrong 14.4 | how long one stays
grown = {name: after[name] - before[name] for name in before}
inside = grown["vllm:e2e_request_latency_seconds_sum"] / grown["vllm:request_success_total"]
waiting, full_after = 1, 1

# %% wrong 14.4 | number of those who run
grown = {name: after[name] - before[name] for name in before}
inside = grown["vllm:e2e_request_latency_seconds_sum"] / grown["time"]
waiting = inside - grown["vllm:request_queue_time_seconds_sum"] / grown["time"]
full_after = 32 / (grown["vllm:request_success_total"] / grown["time"])

# %% wrong 14.4 | what is left
grown = {name: after[name] - before[name] for name in before}
inside = grown["vllm:e2e_request_latency_seconds_sum"] / grown["time"]
waiting = grown["vllm:request_queue_time_seconds_sum"] / grown["time"]
full_after = 32 / (2 * grown["vllm:request_success_total"] / grown["time"])

# %% right 14.4 | Little's law in so many words
span = after["time"] - before["time"]
stay, queue = "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"
served = after[stay + "_count"] - before[stay + "_count"]
rate = served / span
inside = rate * (after[stay + "_sum"] - before[stay + "_sum"]) / served
waiting = rate * (after[queue + "_sum"] - before[queue + "_sum"]) / served
full_after = 32 / (2 * rate - rate)

# %% wrong 14.5 | went away at
ghosts = ["D", "E"]
Mended = Lazy

# %% wrong 14.5 | still in the queue then
ghosts = ["D", "E"]


class Mended(Lazy):  # right for those who read, and not for those who wait
    def __init__(self, abort):
        super().__init__(abort)
        self.reading = set()

    def write(self, name):
        self.reading.add(name)
        super().write(name)

    def gone(self, name):
        super().gone(name)
        if name in self.reading:
            self.abort(name)


# %% wrong 14.5 | still reading, and its answer is cut off
ghosts = ["D", "E"]


class Mended(Lazy):  # ends everybody at the first token
    def gone(self, name):
        self.abort(name)

    def write(self, name):
        self.abort(name)


# %% wrong 14.5 | Whose prompt begins
ghosts = ["A", "D", "E"]


class Mended(Lazy):
    def gone(self, name):
        self.abort(name)


# %% right 14.5 | written anew, the names in another order
ghosts = ("E", "D")


class Mended:
    def __init__(self, abort):
        self.leave_a_note = abort

    def gone(self, name):
        self.leave_a_note(name)

    def write(self, name):
        pass
