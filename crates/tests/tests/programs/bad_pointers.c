/* Every argument of a socket call that is a pointer, as one to memory that is not there: says what each call did. Linux says
 * EFAULT, and nothing is lost. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 7305

/* Unknown to the compiler. */
static char *volatile nowhere;

static void say(const char *what, long result)
{
	printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
	fflush(stdout);
}

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* `bad` begins where the page before it ends. */
static void moving(int client, int server, char *bad)
{
	char good[100];
	struct iovec vectors[2] = { { good, 4 }, { bad, 6 } };
	struct msghdr message = { .msg_iov = (struct iovec *)bad, .msg_iovlen = 1 };

	must(write(client, "0123456789", 10) == 10, "write");
	must(poll(&(struct pollfd){ .fd = server, .events = POLLIN }, 1, 10000) == 1, "poll");
	say("read", read(server, bad, 10));
	say("read of nowhere", read(server, nowhere, 10));
	say("read across", read(server, bad - 4, 10));
	say("recv and look", recv(server, bad, 10, MSG_PEEK));
	say("readv", readv(server, vectors, 2));
	say("readv of bad vectors", readv(server, (struct iovec *)bad, 2));
	say("recvmsg", recvmsg(server, (struct msghdr *)bad, 0));
	say("recvmsg of bad vectors", recvmsg(server, &message, 0));
	say("recvmmsg", recvmmsg(server, (struct mmsghdr *)bad, 1, 0, NULL));
	say("ioctl", ioctl(server, FIONREAD, bad));
	memset(good, 0, sizeof(good));
	say("read what is left", read(server, good, 10));
	say(good, 0);

	say("write", write(client, bad, 10));
	say("write of nowhere", write(client, nowhere, 10));
	say("write across", write(client, bad - 4, 10));
	say("writev", writev(client, vectors, 2));
	say("writev of bad vectors", writev(client, (struct iovec *)bad, 1));
	say("sendmsg", sendmsg(client, (struct msghdr *)bad, 0));
	say("sendmsg of bad vectors", sendmsg(client, &message, 0));
	say("sendmmsg", sendmmsg(client, (struct mmsghdr *)bad, 1, 0));
	say("sendfile", sendfile(client, 0, (off_t *)bad, 10));
	say("nothing came", recv(server, good, 10, MSG_DONTWAIT));
}

static void waiting(int fd, char *bad)
{
	struct epoll_event event = { .events = EPOLLOUT };
	struct timespec now = { 0 };
	int set = epoll_create1(0), other = epoll_create1(0);

	say("poll", poll((struct pollfd *)bad, 1, 0));
	say("ppoll", ppoll((struct pollfd *)bad, 1, &now, NULL));
	say("select", select(fd + 1, (fd_set *)bad, NULL, NULL, NULL));
	say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, (struct epoll_event *)bad));
	say("epoll_ctl of another", epoll_ctl(set, EPOLL_CTL_ADD, other, (struct epoll_event *)bad));
	say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	say("epoll_wait", epoll_wait(set, (struct epoll_event *)bad, 10, 1000));
	say("epoll_wait", epoll_wait(set, &event, 1, 1000));
}

static void asking(int listener, int fd, char *bad)
{
	struct sockaddr_in addr;
	socklen_t len = sizeof(addr);
	int value = 0, new = socket(AF_INET, SOCK_STREAM, 0);

	say("getsockname", getsockname(fd, (struct sockaddr *)bad, &len));
	say("getsockname's length", getsockname(fd, (struct sockaddr *)&addr, (socklen_t *)bad));
	say("getpeername", getpeername(fd, (struct sockaddr *)bad, &len));
	len = sizeof(value);
	say("getsockopt", getsockopt(fd, SOL_SOCKET, SO_TYPE, bad, &len));
	say("getsockopt's length", getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, (socklen_t *)bad));
	say("setsockopt", setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, bad, sizeof(value)));
	say("connect", connect(new, (struct sockaddr *)bad, sizeof(addr)));
	say("bind", bind(new, (struct sockaddr *)bad, sizeof(addr)));
	len = sizeof(addr);
	must(getsockname(listener, (struct sockaddr *)&addr, &len) == 0, "getsockname");
	must(connect(new, (struct sockaddr *)&addr, len) == 0, "connect");
	say("accept", accept(listener, (struct sockaddr *)bad, &len));
	say("its peer's end", read(new, &value, 1));
}

/* A program's own faults are its own: with a handler, that is asked for again as it was given, and without. */
static volatile sig_atomic_t faults;
static char *page;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	faults += info->si_addr == page;
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void faulting(int fd)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND }, known;
	int status;

	must(sigaction(SIGSEGV, NULL, &known) == 0, "sigaction");
	say("none at first", known.sa_handler == SIG_DFL);
	must(sigaction(SIGSEGV, &action, &known) == 0, "sigaction");
	say("none before", known.sa_handler == SIG_DFL);
	must(sigaction(SIGSEGV, NULL, &known) == 0, "sigaction");
	say("as given", known.sa_sigaction == on_fault && known.sa_flags & SA_RESETHAND);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say("write, with a handler", write(fd, page, 10));
	*(volatile char *)page = 1;
	say("faults handled", faults);
	must(sigaction(SIGSEGV, NULL, &known) == 0, "sigaction");
	say("none any more", known.sa_handler == SIG_DFL);
	fflush(stdout);
	if (fork() == 0) {
		*(volatile char *)nowhere = 1;
		_exit(0);
	}
	must(wait(&status) > 0, "wait");
	say("a child's end by its fault", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	if (fork() == 0) {
		kill(getpid(), SIGSEGV);
		_exit(0);
	}
	must(wait(&status) > 0, "wait");
	say("a child's end by a signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	must(signal(SIGSEGV, SIG_IGN) == SIG_DFL, "signal");
	raise(SIGSEGV);
	say("ignored", signal(SIGSEGV, SIG_DFL) == SIG_IGN);
}

int main(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), on = 1, server;
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(mprotect(pages + 4096, 4096, PROT_NONE) == 0, "mprotect");
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "setsockopt");
	must(bind(listener, (struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(listener, 5) == 0, "listen");
	must(connect(client, (struct sockaddr *)&addr, sizeof(addr)) == 0, "connect");
	server = accept(listener, NULL, NULL);
	moving(client, server, pages + 4096);
	waiting(client, pages + 4096);
	asking(listener, client, pages + 4096);
	faulting(client);
	return 0;
}
