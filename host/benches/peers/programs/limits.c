/* What this machine can do at best: plain TCP over loopback, without framing, names or anyone who could fail.
 *
 * Reads one question a line and answers each with a line `answer MICROSECONDS`, the median of one call:
 *
 *   push BYTES SECONDS      the client writes so many bytes; the server adds them to a tensor of f32, 256 KiB at a time while
 *                           they are in its cache, and answers with one byte
 *   pull BYTES SECONDS      the client writes one byte, the server answers with so many
 *   barrier TASKS ROUNDS    so many processes write 16 bytes each to one that waits for all with epoll, and that answers each
 *                           with 16
 *
 * Every server and every task is a process of its own, started for the question.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 256 << 10, MESSAGE = 16, WARM_UP = 3, SAMPLES_MIN = 5, SAMPLES_MAX = 1 << 20, TASKS_MAX = 64, ROUNDS_WARM_UP = 50 };

static void fail(const char *what) {
  perror(what);
  _exit(1);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *samples, size_t count) {
  qsort(samples, count, sizeof *samples, ascending);
  return samples[count / 2];
}

static void no_delay(int socket) {
  int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int listen_on(struct sockaddr_in *address) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  socklen_t size = sizeof *address;
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (void *)address, size) || listen(listener, TASKS_MAX)) fail("listen");
  getsockname(listener, (void *)address, &size);
  return listener;
}

static int connect_to(const struct sockaddr_in *address) {
  int stream = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(stream, (const void *)address, sizeof *address)) fail("connect");
  no_delay(stream);
  return stream;
}

static int accept_one(int listener) {
  int stream = accept(listener, 0, 0);
  if (stream < 0) fail("accept");
  no_delay(stream);
  return stream;
}

/* Both are 0 when all bytes went through. */
static int read_all(int stream, void *to, size_t size) {
  for (char *at = to; size;) {
    ssize_t done = read(stream, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return -1;
    at += done, size -= (size_t)done;
  }
  return 0;
}

static int write_all(int stream, const void *from, size_t size) {
  for (const char *at = from; size;) {
    ssize_t done = write(stream, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return -1;
    at += done, size -= (size_t)done;
  }
  return 0;
}

static void add(float *restrict to, const float *restrict value, size_t count) {
  for (size_t i = 0; i < count; i++) to[i] += value[i];
}

/* Pages that have been touched. */
static void *memory(size_t size) {
  void *all = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (!all) fail("memory");
  memset(all, 0, size);
  return all;
}

static int take_push(int stream, float *variable, float *block, size_t size) {
  for (size_t done = 0; done < size;) {
    size_t next = size - done < BLOCK ? size - done : BLOCK;
    if (read_all(stream, block, next)) return -1;
    add(variable + done / sizeof *variable, block, next / sizeof *variable);
    done += next;
  }
  return write_all(stream, "", 1);
}

static void serve(int listener, int push, size_t size) {
  int stream = accept_one(listener);
  float *variable = memory(size), *block = memory(BLOCK);
  char byte;
  if (push)
    while (!take_push(stream, variable, block, size));
  else
    while (!read_all(stream, &byte, 1) && !write_all(stream, variable, size));
  _exit(0);
}

static double transfer(int push, size_t size, double duration) {
  struct sockaddr_in address;
  int listener = listen_on(&address);
  pid_t server = fork();
  if (!server) serve(listener, push, size);
  int stream = connect_to(&address);
  close(listener);
  char *value = memory(size), byte = 0;
  double *samples = malloc(SAMPLES_MAX * sizeof *samples), until = 0;
  size_t count = 0;
  for (int call = -WARM_UP; count < SAMPLES_MAX; call++) {
    double started = seconds();
    if (!call) until = started + duration;
    if (push ? write_all(stream, value, size) || read_all(stream, &byte, 1)
             : write_all(stream, &byte, 1) || read_all(stream, value, size))
      fail("transfer");
    double ended = seconds();
    if (call < 0) continue;
    samples[count++] = ended - started;
    if (ended > until && count >= SAMPLES_MIN) break;
  }
  close(stream);
  waitpid(server, 0, 0);
  double middle = median(samples, count);
  free(samples), free(value);
  return middle;
}

static void release_rounds(int listener, int tasks, int rounds) {
  int streams[TASKS_MAX], poll = epoll_create1(0), arrived = 0;
  char message[MESSAGE];
  for (int i = 0; i < tasks; i++) {
    streams[i] = accept_one(listener);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = streams[i]};
    epoll_ctl(poll, EPOLL_CTL_ADD, streams[i], &event);
  }
  while (rounds) {
    struct epoll_event events[TASKS_MAX];
    int ready = epoll_wait(poll, events, TASKS_MAX, 10000);
    if (ready <= 0) fail("epoll");
    for (int i = 0; i < ready; i++, arrived++)
      if (read_all(events[i].data.fd, message, MESSAGE)) fail("arrival");
    if (arrived < tasks) continue;
    arrived = 0, rounds--;
    for (int i = 0; i < tasks; i++)
      if (write_all(streams[i], message, MESSAGE)) fail("release");
  }
  _exit(0);
}

static void meet(const struct sockaddr_in *address, double *samples, int rounds) {
  int stream = connect_to(address);
  char message[MESSAGE] = {0};
  for (int round = -ROUNDS_WARM_UP; round < rounds; round++) {
    double started = seconds();
    if (write_all(stream, message, MESSAGE) || read_all(stream, message, MESSAGE)) fail("round");
    if (round >= 0) samples[round] = seconds() - started;
  }
  _exit(0);
}

static double barrier(int tasks, int rounds) {
  struct sockaddr_in address;
  int listener = listen_on(&address);
  size_t count = (size_t)tasks * (size_t)rounds, size = count * sizeof(double);
  double *samples = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (samples == MAP_FAILED) fail("memory");
  if (!fork()) release_rounds(listener, tasks, rounds + ROUNDS_WARM_UP);
  for (int i = 0; i < tasks; i++)
    if (!fork()) meet(&address, samples + (size_t)i * (size_t)rounds, rounds);
  for (int status; wait(&status) > 0;)
    if (status) fail("a task failed");
  close(listener);
  double middle = median(samples, count);
  munmap(samples, size);
  return middle;
}

int main(void) {
  char what[16];
  double size, bound;
  signal(SIGPIPE, SIG_IGN);
  while (scanf("%15s %lf %lf", what, &size, &bound) == 3) {
    double time;
    if (!strcmp(what, "push") || !strcmp(what, "pull"))
      time = transfer(!strcmp(what, "push"), (size_t)size, bound);
    else if (!strcmp(what, "barrier") && size <= TASKS_MAX)
      time = barrier((int)size, (int)bound);
    else
      return 2;
    printf("answer %.2f\n", time * 1e6);
    fflush(stdout);
  }
  return 0;
}
