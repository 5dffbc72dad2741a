/*
 * Threads that accept, connect, send, receive, poll, dup, close, fork, spawn, pass descriptors, get signals and die, all at
 * once, over TCP connections of which every byte is checked.
 *
 *   mixes serve|SECONDS ADDRESS PORT
 *
 * Two processes: one listens, the other connects for so many seconds; either does what comes to the minds of its threads. A connection begins
 * with what the client wants of it; then bytes go both ways that both sides can work out from the seed. Whatever Linux would
 * not give (an errno, an early end, a wrong byte) ends the program with a line that says what. At the end every descriptor
 * that the program has made must be gone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define ACCEPTORS 6
#define CLIENTS 6
#define BYTES_MAX 200000

/* What the client wants. */
enum {
	ECHO,	/* the bytes come back */
	CHILD,	/* a child of fork serves, and its parent lets go */
	PASS,	/* the descriptor goes by a message to another thread, which serves */
	KILL,	/* the child that serves is killed at some point: the end may come early */
	WANTS
};

struct head {
	uint32_t seed, bytes, want, check;
};

static struct sockaddr_in place;
static int listener = -1;
static atomic_bool over;
static atomic_long served, asked, children, signals, passed, killed;
static int passing[2];
static pthread_t marks[ACCEPTORS + CLIENTS];
static atomic_int mark_state[ACCEPTORS + CLIENTS];
static const char *side = "both";
/* What this thread's connection is for. */
static __thread int wanted = -1;

static void fault(const char *format, ...)
{
	char text[512];
	va_list arguments;
	int error = errno;
	va_start(arguments, format);
	int n = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	n += snprintf(text + n, sizeof text - n, " (%s, pid %d, want %d: %s)\n", side, getpid(), wanted, strerror(error));
	if (write(1, text, n) != n)
		_exit(4);
	_exit(3);
}

static uint32_t next(uint32_t *state)
{
	uint32_t x = *state;
	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return *state = x ? x : 1;
}

static uint32_t below(uint32_t *state, uint32_t n)
{
	return next(state) % n;
}

static unsigned char byte_at(uint32_t seed, uint32_t at)
{
	return (unsigned char)(at * 7 + (at >> 8) * 13 + seed);
}

static void on_signal(int number)
{
	(void)number;
	atomic_fetch_add(&signals, 1);
}

/* The descriptor's own way to wait: none, poll, select's successor or an epoll set of its own. */
static void wait_for(int fd, int events, uint32_t *dice)
{
	if (below(dice, 4) == 0) {
		int set = epoll_create1(EPOLL_CLOEXEC);
		struct epoll_event event = {.events = events == POLLIN ? EPOLLIN : EPOLLOUT};
		if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
			fault("epoll_ctl of %d", fd);
		while (epoll_wait(set, &event, 1, -1) < 0)
			if (errno != EINTR)
				fault("epoll_wait");
		close(set);
		return;
	}
	struct pollfd polled = {.fd = fd, .events = events};
	while (poll(&polled, 1, -1) < 0)
		if (errno != EINTR)
			fault("poll");
}

/* Bytes received; 0 at the end, -1 after a reset if that `may_end`. */
static ssize_t get(int fd, void *to, size_t room, uint32_t *dice, int may_end)
{
	for (;;) {
		ssize_t n;
		struct iovec parts[2] = {{to, room / 2}, {(char *)to + room / 2, room - room / 2}};
		struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
		switch (below(dice, 7)) {
		case 0:
			n = read(fd, to, room);
			break;
		case 1:
			n = readv(fd, parts, 2);
			break;
		case 2:
			n = recvmsg(fd, &message, 0);
			break;
		case 3:
			n = recv(fd, to, room, MSG_PEEK);
			if (n > 0)
				n = recv(fd, to, n, MSG_WAITALL);
			break;
		case 4:
			n = recv(fd, to, room, MSG_DONTWAIT);
			if (n < 0 && errno == EAGAIN) {
				wait_for(fd, POLLIN, dice);
				continue;
			}
			break;
		default:
			n = recv(fd, to, room, 0);
		}
		if (n >= 0)
			return n;
		if (errno == EINTR || errno == EAGAIN)
			continue;
		if (may_end && (errno == ECONNRESET || errno == EPIPE))
			return -1;
		fault("receive on %d", fd);
	}
}

static int put(int fd, const unsigned char *from, size_t bytes, uint32_t *dice, int may_end)
{
	while (bytes > 0) {
		size_t some = 1 + below(dice, bytes < 30000 ? bytes : 30000);
		struct iovec parts[2] = {{(void *)from, some / 2}, {(void *)(from + some / 2), some - some / 2}};
		ssize_t n;
		switch (below(dice, 5)) {
		case 0:
			n = send(fd, from, some, MSG_NOSIGNAL);
			break;
		case 1:
			n = writev(fd, parts, 2);
			break;
		case 2:
			n = send(fd, from, some, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (n < 0 && errno == EAGAIN) {
				wait_for(fd, POLLOUT, dice);
				continue;
			}
			break;
		default:
			n = write(fd, from, some);
		}
		if (n < 0) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			if (may_end && (errno == ECONNRESET || errno == EPIPE))
				return -1;
			fault("send on %d", fd);
		}
		from += n;
		bytes -= n;
	}
	return 0;
}

static void fill(unsigned char *to, uint32_t seed, uint32_t at, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		to[i] = byte_at(seed, at + i);
}

static void check(const unsigned char *from, uint32_t seed, uint32_t at, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (from[i] != byte_at(seed, at + i))
			fault("byte %u of seed %u is %u and not %u", at + i, seed, from[i], byte_at(seed, at + i));
}

/* Reads what the client sends and sends it back. */
static void serve(int fd, const struct head *head, uint32_t *dice)
{
	unsigned char *room = malloc(BYTES_MAX);
	uint32_t at = 0;
	int may_end = head->want == KILL;
	wanted = (int)head->want;
	while (at < head->bytes) {
		ssize_t n = get(fd, room, 1 + below(dice, 40000), dice, may_end);
		if (n <= 0 && may_end)
			break;
		if (n <= 0)
			fault("end after %u of %u bytes on %d, want %u", at, head->bytes, fd, head->want);
		check(room, head->seed, at, n);
		if (put(fd, room, n, dice, may_end) < 0)
			break;
		at += n;
		if (below(dice, 8) == 0) {
			int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
			if (copy < 0)
				fault("dup of %d", fd);
			close(fd);
			fd = copy;
		}
	}
	free(room);
	/* The client closes first, so that both know that the other has had all. */
	char byte;
	ssize_t n = get(fd, &byte, 1, dice, may_end);
	if (n != 0 && !may_end)
		fault("%zd and not the end", n);
	close(fd);
	atomic_fetch_add(&served, 1);
}

static void serve_in_child(int fd, const struct head *head, uint32_t *dice)
{
	atomic_fetch_add(&children, 1);
	pid_t pid = fork();
	if (pid < 0)
		fault("fork");
	if (pid == 0) {
		side = "child";
		alarm(60);
		serve(fd, head, dice);
		_exit(0);
	}
	if (below(dice, 2))
		close(fd), fd = -1;
	if (head->want == KILL) {
		struct timespec pause = {0, (long)below(dice, 3000000)};
		nanosleep(&pause, NULL);
		kill(pid, SIGKILL);
		atomic_fetch_add(&killed, 1);
	}
	if (fd >= 0)
		close(fd);
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			fault("waitpid");
	if (head->want != KILL && status != 0)
		fault("a child ended with %#x", status);
}

/* Sends a descriptor, or none, to the thread that waits for them. */
static void pass(int fd, const struct head *head)
{
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec part = {(void *)head, sizeof *head};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd >= 0) {
		message.msg_control = control;
		message.msg_controllen = sizeof control;
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(header), &fd, sizeof fd);
	}
	while (sendmsg(passing[0], &message, 0) < 0)
		if (errno != EINTR)
			fault("sendmsg of a descriptor");
	atomic_fetch_add(&passed, 1);
	if (fd >= 0)
		close(fd);
}

static void *receiver(void *unused)
{
	(void)unused;
	uint32_t dice = 77;
	for (;;) {
		struct head head;
		char control[CMSG_SPACE(sizeof(int))];
		struct iovec part = {&head, sizeof head};
		struct msghdr message = {&(char[1]){0}, 0, &part, 1, control, sizeof control, 0};
		ssize_t n = recvmsg(passing[1], &message, MSG_CMSG_CLOEXEC);
		if (n < 0 && errno == EINTR)
			continue;
		if (n != sizeof head)
			fault("recvmsg of a descriptor");
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		if (!header)
			return NULL;
		int fd;
		memcpy(&fd, CMSG_DATA(header), sizeof fd);
		serve(fd, &head, &dice);
	}
}

static int take(uint32_t *dice)
{
	int flags = below(dice, 2) ? SOCK_CLOEXEC : 0;
	for (;;) {
		if (below(dice, 3) == 0)
			wait_for(listener, POLLIN, dice);
		int fd = accept4(listener, NULL, NULL, flags);
		if (fd >= 0)
			return fd;
		if (errno != EINTR && errno != EAGAIN)
			fault("accept");
	}
}

static void mark(int at, int state)
{
	marks[at] = pthread_self();
	atomic_store(&mark_state[at], state);
}

/* Serves until it has had enough; whoever made it makes another. */
static void *acceptor(void *at)
{
	uint32_t dice = (uint32_t)(uintptr_t)at * 2654435761u + (uint32_t)time(NULL);
	mark((int)((uintptr_t)at & 255), 1);
	for (int lives = 1 + (int)below(&dice, 60); lives > 0; lives--) {
		int fd = take(&dice);
		struct head head;
		ssize_t n = 0;
		for (size_t got = 0; got < sizeof head; got += n) {
			n = get(fd, (char *)&head + got, sizeof head - got, &dice, 0);
			if (n <= 0)
				fault("no beginning on %d", fd);
		}
		if (head.check != (head.seed ^ head.bytes ^ head.want))
			fault("a beginning of another connection on %d", fd);
		if (head.bytes == 0) {
			/* The end: told once for each acceptor. */
			close(fd);
			atomic_store(&over, 1);
			break;
		}
		switch (head.want) {
		case CHILD:
		case KILL:
			serve_in_child(fd, &head, &dice);
			break;
		case PASS:
			pass(fd, &head);
			break;
		default:
			serve(fd, &head, &dice);
		}
	}
	atomic_store(&mark_state[(uintptr_t)at & 255], 0);
	return NULL;
}

static int reach(uint32_t *dice)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (below(dice, 3) == 0 ? SOCK_NONBLOCK : 0), 0);
	if (fd < 0)
		fault("socket");
	if (connect(fd, (struct sockaddr *)&place, sizeof place) == 0)
		goto done;
	if (errno != EINPROGRESS && errno != EINTR)
		fault("connect of %d", fd);
	wait_for(fd, POLLOUT, dice);
	int error;
	socklen_t len = sizeof error;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		fault("SO_ERROR");
	if (error) {
		errno = error;
		fault("connect of %d, later", fd);
	}
done:
	fcntl(fd, F_SETFL, 0);
	return fd;
}

static int ask(uint32_t *dice, uint32_t want, uint32_t bytes)
{
	struct head head = {next(dice), bytes, want, 0};
	head.check = head.seed ^ head.bytes ^ head.want;
	wanted = (int)want;
	int fd = reach(dice);
	int may_end = want == KILL;
	put(fd, (unsigned char *)&head, sizeof head, dice, 0);
	unsigned char *room = malloc(BYTES_MAX);
	uint32_t sent = 0, back = 0;
	while (back < bytes) {
		if (sent < bytes && sent - back < 60000) {
			uint32_t some = 1 + below(dice, bytes - sent < 20000 ? bytes - sent : 20000);
			fill(room, head.seed, sent, some);
			if (put(fd, room, some, dice, may_end) < 0)
				break;
			sent += some;
		}
		if (sent == bytes || below(dice, 2)) {
			ssize_t n = get(fd, room, sent - back ? sent - back : 1, dice, may_end);
			if (n <= 0 && may_end)
				break;
			if (n <= 0)
				fault("end after %u of %u bytes back on %d, want %u", back, bytes, fd, want);
			check(room, head.seed, back, n);
			back += n;
		}
	}
	if (shutdown(fd, SHUT_WR) < 0 && !may_end)
		fault("shutdown");
	if (bytes > 0) {
		ssize_t n = get(fd, room, 1, dice, may_end);
		/* Of one that was killed some may still be on the way. */
		if (n != 0 && !may_end)
			fault("%zd bytes behind the last", n);
	}
	free(room);
	close(fd);
	atomic_fetch_add(&asked, 1);
	return 0;
}

static void *client(void *at)
{
	uint32_t dice = (uint32_t)(uintptr_t)at * 2246822519u + (uint32_t)time(NULL);
	mark((int)((uintptr_t)at & 255), 1);
	for (int lives = 1 + (int)below(&dice, 60); lives > 0 && !atomic_load(&over); lives--) {
		uint32_t want = below(&dice, 3) ? ECHO : below(&dice, WANTS);
		ask(&dice, want, 1 + below(&dice, below(&dice, 4) ? 3000 : BYTES_MAX / 2));
	}
	atomic_store(&mark_state[(uintptr_t)at & 255], 0);
	return NULL;
}

static pid_t vforked(char **arguments)
{
	pid_t pid = vfork();
	if (pid == 0) {
		execve("/bin/true", arguments, environ);
		_exit(9);
	}
	return pid;
}

/* Children that have nothing to do with the connections, and whatever else a program does beside. */
static void *bystander(void *unused)
{
	(void)unused;
	uint32_t dice = (uint32_t)getpid();
	while (!atomic_load(&over)) {
		char *arguments[] = {"true", NULL};
		pid_t pid = 0;
		int status;
		atomic_fetch_add(&children, 1);
		switch (below(&dice, 4)) {
		case 0:
			if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ) != 0)
				fault("posix_spawn");
			break;
		case 1:
			if (system("true") != 0)
				fault("system");
			break;
		case 2:
			pid = vforked(arguments);
			break;
		default:
			pid = fork();
			if (pid == 0)
				_exit(0);
		}
		if (pid < 0)
			fault("no child");
		while (pid > 0 && waitpid(pid, &status, 0) < 0)
			if (errno != EINTR)
				fault("waitpid of a bystander");
		struct timespec pause = {0, (long)below(&dice, 4000000)};
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static void *signaller(void *count)
{
	uint32_t dice = 99;
	while (!atomic_load(&over)) {
		int at = (int)below(&dice, (uint32_t)(uintptr_t)count);
		if (atomic_load(&mark_state[at]) == 1)
			kill(getpid(), below(&dice, 2) ? SIGUSR1 : SIGUSR2);
		struct timespec pause = {0, (long)below(&dice, 2000000)};
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* The program's own descriptors: numbers that it could have been given. */
static int descriptors(void)
{
	int count = 0;
	struct dirent *entry;
	DIR *all = opendir("/proc/self/fd");
	while ((entry = readdir(all)))
		if (entry->d_name[0] != '.' && atoi(entry->d_name) < 500)
			count++;
	closedir(all);
	return count;
}

static void run_threads(void *(*what)(void *), int count, time_t until)
{
	pthread_t threads[ACCEPTORS + CLIENTS], beside, signs;
	uint32_t births = 0;
	if (pthread_create(&beside, NULL, bystander, NULL) || pthread_create(&signs, NULL, signaller, (void *)(uintptr_t)count))
		fault("pthread_create");
	for (int n = 0; n < count; n++)
		if (pthread_create(&threads[n], NULL, what, (void *)(uintptr_t)(births++ << 8 | n)))
			fault("pthread_create");
	while (!atomic_load(&over)) {
		for (int n = 0; n < count; n++) {
			if (pthread_tryjoin_np(threads[n], NULL) != 0)
				continue;
			if (pthread_create(&threads[n], NULL, what, (void *)(uintptr_t)(births++ << 8 | n)))
				fault("pthread_create");
		}
		struct timespec pause = {0, 1000000};
		nanosleep(&pause, NULL);
		if (until && time(NULL) >= until)
			atomic_store(&over, 1);
	}
	for (int n = 0; n < count; n++)
		pthread_join(threads[n], NULL);
	pthread_join(beside, NULL);
	pthread_join(signs, NULL);
}

static void the_server(void)
{
	side = "server";
	pthread_t other;
	int before = descriptors();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, passing) < 0 || pthread_create(&other, NULL, receiver, NULL))
		fault("socketpair");
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&place, sizeof place) < 0 || listen(listener, 1000) < 0)
		fault("listen");
	printf("ready\n");
	run_threads(acceptor, ACCEPTORS, 0);
	struct head none = {0};
	pass(-1, &none);
	pthread_join(other, NULL);
	close(listener);
	close(passing[0]);
	close(passing[1]);
	if (descriptors() != before)
		fault("%d descriptors are left of %d", descriptors(), before);
	printf("server: %ld served, %ld children, %ld killed, %ld passed, %ld signals\n", served, children, killed, passed,
	       signals);
}

static void the_client(int seconds)
{
	side = "client";
	int before = descriptors();
	run_threads(client, CLIENTS, time(NULL) + seconds);
	/* Threads that are replaced between: more than there are. */
	for (int n = 0; n < ACCEPTORS * 2; n++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct head head = {1, 0, 0, 1};
		/* Once all of them know, nobody listens any more, and what waits to be accepted then is reset. */
		if (connect(fd, (struct sockaddr *)&place, sizeof place) == 0 && write(fd, &head, sizeof head) < 0 &&
		    errno != ECONNRESET && errno != EPIPE)
			fault("the end");
		close(fd);
	}
	if (descriptors() != before)
		fault("%d descriptors are left of %d", descriptors(), before);
	printf("client: %ld asked, %ld children, %ld signals\n", asked, children, signals);
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	place.sin_family = AF_INET;
	place.sin_port = htons((uint16_t)atoi(words[3]));
	inet_pton(AF_INET, words[2], &place.sin_addr);
	signal(SIGPIPE, SIG_IGN);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
	action.sa_flags = 0;
	sigaction(SIGUSR2, &action, NULL);
	if (strcmp(words[1], "serve") == 0)
		the_server();
	else
		the_client(atoi(words[1]));
	printf("%s: good\n", side);
	return 0;
}
